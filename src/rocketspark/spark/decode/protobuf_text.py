"""Descriptors made from Protobuf schemas that a registry gives as text, by the compiler of grpcio-tools. Rule: the text
is not trusted: it is compiled in a process of its own, in an empty folder, with bounds on time, memory and size.
"""

from __future__ import annotations

import base64
import binascii
import importlib.util
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rocketspark.errors import ConfigError
from rocketspark.model.text import shown

TEXT_BYTES_MAX = 4 << 20
DESCRIPTOR_BYTES_MAX = 16 << 20
MEMORY_BYTES_MAX = 2 << 30
COMPILE_S = 20.0
# The name that a registry has for none.
MAIN = "registered_schema.proto"
# Google's own are with the compiler.
_OWN = "google/protobuf/"

_COMPILE = """
import sys
folder, own, *names = sys.argv[1:]
try:
    import resource
    for name, most in (("AS", {memory}), ("FSIZE", {size}), ("CPU", {seconds})):
        resource.setrlimit(getattr(resource, "RLIMIT_" + name), (most, most))
except (ImportError, AttributeError, ValueError, OSError):
    pass
from grpc_tools import protoc
sys.exit(protoc.main(["protoc", "-I" + folder, "-I" + own, "--include_imports", "-o", folder + "/out", *names]))
"""


def is_text(schema: str) -> bool:
    """Tell whether a registry gave a schema's text, and not its descriptor in base64."""
    try:
        return not base64.b64decode(schema, validate=True)
    except (binascii.Error, ValueError):
        return True


def compiled(files: Sequence[tuple[str, str]]) -> bytes:
    """Return the FileDescriptorSet of texts, each with the name that others import it by; the last one is the schema,
    and has none. Raises ValueError with the compiler's first complaint, or what to do if there is none.
    """
    found = importlib.util.find_spec("grpc_tools")
    if found is None or not found.submodule_search_locations:
        raise ValueError(
            "the registry gives Protobuf only as text: pip install 'rocketspark[protoc]', on executors too, or give"
            " decodeDescriptorFile and decodeMessage"
        )
    if sum(len(text) for _, text in files) > TEXT_BYTES_MAX:
        raise ValueError(f"its text is longer than {TEXT_BYTES_MAX >> 20} MiB with what it imports")
    own = Path(found.submodule_search_locations[0]) / "_proto"
    with tempfile.TemporaryDirectory(prefix="rocketspark-proto-") as folder:
        for name, text in files:
            if not name.startswith(_OWN):
                _write(Path(folder), name or MAIN, text)
        return _compile(Path(folder), own)


def _write(folder: Path, name: str, text: str) -> None:
    parts = name.split("/")
    if not name.endswith(".proto") or not all(re.fullmatch(r"[\w@+-][\w.@+-]{0,99}", part, re.ASCII) for part in parts):
        raise ValueError(f"it imports {shown(name)!r}, which is no name of a .proto file")
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8", errors="replace")


def _compile(folder: Path, own: Path) -> bytes:
    code = _COMPILE.format(memory=MEMORY_BYTES_MAX, size=DESCRIPTOR_BYTES_MAX, seconds=int(COMPILE_S))
    # Without -P, Python would import what lies in the working folder.
    command = [sys.executable, "-P", "-c", code, str(folder), str(own), MAIN]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=COMPILE_S
        )
    except subprocess.TimeoutExpired:
        raise ValueError(f"its text takes more than {COMPILE_S:g} s to compile") from None
    except OSError as e:
        raise ConfigError(f"the compiler of Protobuf cannot be started: {e.strerror or e}") from None
    out = folder / "out"
    if done.returncode != 0 or not out.is_file():
        lines = done.stderr.decode("utf-8", "replace").replace(f"{folder}/", "").strip().splitlines()
        why = next((line for line in lines if line.startswith(MAIN) or ".proto:" in line), lines[-1] if lines else "")
        raise ValueError(f"its text does not compile: {shown(why or f'exit code {done.returncode}')}")
    return out.read_bytes()
