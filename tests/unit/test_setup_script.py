"""scripts/setup.sh on machines it has never seen: a PATH of stubs, and a record of what was installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.shows(
    "set-up finds or installs Python environment, Java, Maven; else says the exact command",
    "set-up is not repeated; works offline the second time",
)

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ("bash", "env", "cat", "cksum", "sed", "grep", "mkdir", "rm", "dirname", "readlink", "chmod", "cp")

# Java as setup.sh sees it: a version, a home, a module list.
JAVA = """#!/bin/sh
case "$*" in
  *-XshowSettings*) echo "    java.specification.version = {version}"; echo "    java.home = {home}" ;;
  --list-modules) echo java.base@{version}; {modules} ;;
esac
"""
VECTOR = "echo jdk.incubator.vector@17"

# Python: the real one, except that `-m venv` makes a stub that records its pip calls, and makes others like it.
PYTHON = """#!/bin/sh
if [ "$1 $2" = "-m venv" ]; then
  mkdir -p "$3/bin"
  cat > "$3/bin/python" <<'STUB'
#!/bin/sh
if [ "$1 $2" = "-m pip" ]; then
  [ "$3" = --version ] || echo "pip $*" >> {record}
  [ ! -f {no_network} ] || exit 1
  exit 0
fi
if [ "$1 $2" = "-m venv" ]; then
  mkdir -p "$3/bin"
  cp "$0" "$3/bin/python"
  exit 0
fi
exec {real} "$@"
STUB
  chmod +x "$3/bin/python"
  exit 0
fi
case "$2" in *ensurepip*) [ -f {venv_missing} ] && exit 1 ;; esac
exec {real} "$@"
"""


# What fetches the console's files records that it ran, and leaves its stamp; "no_assets" beside it has it fail.
ASSETS = """
import pathlib, sys
if pathlib.Path(__file__).with_name("no_assets").exists():
    sys.exit("assets: npm could not fetch htmx.org")
pathlib.Path({record!r}).open("a").write("assets\\n")
pathlib.Path({stamp!r}).write_text("made")
"""


class Machine:
    """A pretended machine: stub commands, a copy of the project's set-up, a record of installs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.project = folder / "project"
        self.bin = folder / "bin"
        self.jvms = folder / "jvm"
        self.record = folder / "record"
        self.venv_missing = folder / "venv_missing"
        self.no_network = folder / "no_network"
        program = self.project / "tests" / "go" / "program"
        poms = [Path("tests", "java", "pom.xml"), Path("tests", "spark", "lakehouse", "pom.xml")]
        folders = [(self.project / pom).parent for pom in poms]
        for path in (self.project / "scripts", *folders, program, self.bin, self.jvms):
            path.mkdir(parents=True)
        (program / "main.go").write_text("package main\n")
        shutil.copy(ROOT / "scripts" / "setup.sh", self.project / "scripts")
        shutil.copy(ROOT / "pyproject.toml", self.project)
        for pom in poms:
            shutil.copy(ROOT / pom, self.project / pom)
        for file in ("python/requirements.txt", "go/go.mod", "node/package.json"):
            there = self.project / "tests" / "v5" / file
            there.parent.mkdir(parents=True)
            shutil.copy(ROOT / "tests" / "v5" / file, there)
        console = self.project / "src" / "rocketspark" / "console"
        (console / "static" / "vendor").mkdir(parents=True)
        shutil.copy(ROOT / "src" / "rocketspark" / "console" / "assets.toml", console)
        self.stamp = console / "static" / "vendor" / "assets.sha256"
        (console / "assets.py").write_text(ASSETS.format(record=str(self.record), stamp=str(self.stamp)))
        for tool in TOOLS:
            found = shutil.which(tool)
            assert found is not None
            (self.bin / tool).symlink_to(found)
        self.command("id", "echo 0")
        self.command("mvn", f'echo "mvn $*" >> {self.record}')
        self.command("npm", f'echo "npm $*" >> {self.record}')
        self.command("node", "echo true")
        self.command("chromium", "")
        # The sources of kombu: what pip's stub did not fetch is unpacked.
        self.command("tar", 'mkdir -p "$4/t/integration"; : > "$4/t/integration/common.py"')
        self.command("systemd-analyze", "")
        self.command("prometheus", "")
        self.command("promtool", "")
        self.go("1.19.8")
        self.postgres(15)
        marks = {"venv_missing": self.venv_missing, "no_network": self.no_network}
        python = PYTHON.format(record=self.record, real=sys.executable, **marks)
        self.write(self.bin / "python3.11", python)

    def write(self, path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)

    def command(self, name: str, script: str) -> None:
        (self.bin / name).unlink(missing_ok=True)
        self.write(self.bin / name, f"#!/bin/sh\n{script}\n")

    def java(self, name: str, version: str = "17", compiler: bool = False, vector: bool = True) -> Path:
        """Puts a Java in the place where distributions put them."""
        home = self.jvms / name
        text = JAVA.format(version=version, home=home, modules=VECTOR if vector else ":")
        self.write(home / "bin" / "java", text)
        if compiler:
            self.write(home / "bin" / "javac", "#!/bin/sh\n")
        return home

    def go(self, version: str, name: str = "go") -> Path:
        """Puts a Go into PATH; building makes what -o names."""
        build = f'echo "go $*" >> {self.record}; cp "$0" "$4"'
        self.command(name, f"case $1 in env) echo go{version} ;; build) {build} ;; esac")
        return self.bin / name

    def postgres(self, version: int) -> Path:
        """Puts the programs of a PostgreSQL server in the place where Debian puts them."""
        folder = self.folder / "postgresql" / str(version)
        self.write(folder / "bin" / "initdb", "#!/bin/sh\n")
        self.write(folder / "bin" / "postgres", f'#!/bin/sh\necho "postgres (PostgreSQL) {version}.16 (Debian)"\n')
        return folder

    def apt(self, *brings: str) -> None:
        """An apt-get that records its calls and makes a java appear: "package=home" pairs, homes made by java()."""
        lines = [f'echo "apt-get $*" >> {self.record}']
        for pair in brings:
            package, home = pair.split("=")
            lines.append(f'case "$*" in *{package}*) cp -r {home} {self.jvms}/ ;; esac')
        self.command("apt-get", "\n".join(lines))

    def setup(self, *level: str, **environment: str) -> subprocess.CompletedProcess[str]:
        clean = {"PATH": str(self.bin), "HOME": str(self.folder), "JVM_ROOTS": str(self.jvms), "GO_ROOTS": "/none"}
        clean["POSTGRES_ROOTS"] = f"{self.folder}/postgresql/*"
        return subprocess.run(
            [self.project / "scripts" / "setup.sh", *level],
            env=clean | environment,
            capture_output=True,
            text=True,
            timeout=60,
        )

    @property
    def installs(self) -> list[str]:
        return self.record.read_text().splitlines() if self.record.exists() else []

    @property
    def java_home(self) -> str:
        return (self.project / ".setup" / "java_home").read_text().strip()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    if os.name != "posix":
        pytest.skip("setup.sh is a shell script")
    return Machine(tmp_path)


PIP = "pip -m pip install --disable-pip-version-check -e .[demo,dev]"


def pip_of_spark(version: str) -> str:
    constraint = f"-c .setup/spark-{version}/constraint"
    options = "-q --disable-pip-version-check -e .[demo,pipelines,tests]"
    return f"pip -m pip install {options} {constraint} pyspark=={version}.*"


def test_demo_uses_the_java_that_is_there(machine: Machine) -> None:
    machine.java("java-11", version="11")
    machine.java("java-17-cut-down", vector=False)
    home = machine.java("java-21", version="21")
    done = machine.setup("demo")
    assert done.returncode == 0, done.stderr
    assert machine.java_home == str(home)
    assert machine.installs == [PIP, "assets"]


def test_second_run_does_and_says_nothing(machine: Machine) -> None:
    machine.java("java-17", compiler=True)
    assert machine.setup("test").returncode == 0
    first = machine.installs
    # pip for three environments; Maven for three clients, two servers, a proxy and s3a; two programs in Go; npm,
    # the console's files, axe-core and the script of the site.
    assert len(first) == 17
    done = machine.setup("test")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert machine.setup("demo").stderr == ""
    assert machine.installs == first


def test_changed_dependencies_are_installed_again(machine: Machine) -> None:
    assert machine.setup("python").returncode == 0
    with (machine.project / "pyproject.toml").open("a") as file:
        file.write("\n# changed\n")
    assert machine.setup("python").returncode == 0
    assert machine.installs == [PIP, PIP]


def test_root_on_debian_gets_a_jre(machine: Machine) -> None:
    machine.apt(f"default-jre-headless={machine.java('jre').rename(machine.folder / 'jre')}")
    done = machine.setup("demo")
    assert done.returncode == 0, done.stderr
    assert machine.installs == [PIP, "assets", "apt-get update", "apt-get install -y default-jre-headless"]
    assert machine.java_home == str(machine.jvms / "jre")


def test_jre_without_the_vector_module_is_followed_by_a_jdk(machine: Machine) -> None:
    cut_down = machine.java("jre", vector=False).rename(machine.folder / "jre")
    whole = machine.java("jdk", compiler=True).rename(machine.folder / "jdk")
    machine.apt(f"default-jre-headless={cut_down}", f"default-jdk-headless={whole}")
    done = machine.setup("demo")
    assert done.returncode == 0, done.stderr
    assert [line for line in machine.installs if "install -y" in line] == [
        "apt-get install -y default-jre-headless",
        "apt-get install -y default-jdk-headless",
    ]
    assert machine.java_home == str(machine.jvms / "jdk")


def test_tests_want_a_compiler(machine: Machine) -> None:
    machine.java("jre-17")
    whole = machine.java("jdk", compiler=True).rename(machine.folder / "jdk")
    machine.apt(f"default-jdk-headless={whole}")
    assert machine.setup("demo").returncode == 0
    assert machine.java_home == str(machine.jvms / "jre-17")
    done = machine.setup("test")
    assert done.returncode == 0, done.stderr
    assert machine.java_home == str(machine.jvms / "jdk")


def test_maven_is_installed(machine: Machine) -> None:
    machine.java("jdk", compiler=True)
    (machine.bin / "mvn").unlink()
    machine.command("apt-get", f'echo "apt-get $*" >> {machine.record}\ncp {machine.bin}/id {machine.bin}/mvn')
    done = machine.setup("test")
    assert done.returncode == 0, done.stderr
    assert "apt-get install -y maven" in machine.installs


GO_BUILD = "go build -buildvcs=false -o ../../../.setup/go_driver ."
GO_BUILD_5 = "go build -buildvcs=false -o ../../../.setup/go_v5_driver ."


def test_go_is_installed_and_builds_once(machine: Machine) -> None:
    machine.java("jdk", compiler=True)
    new = machine.go("1.19.8", "new").rename(machine.folder / "new")
    machine.go("1.15.9")  # Too old.
    machine.command("apt-get", f'echo "apt-get $*" >> {machine.record}\nrm {machine.bin}/go\ncp {new} {machine.bin}/go')
    done = machine.setup("test")
    assert done.returncode == 0, done.stderr
    at = machine.installs.index(GO_BUILD)
    assert machine.installs[at - 2 : at] == ["apt-get update", "apt-get install -y golang-go"]
    assert machine.installs.count(GO_BUILD_5) == 1
    assert machine.installs[-2] == pip_of_spark("4.0")
    assert "-f tests/spark/lakehouse/pom.xml dependency:copy-dependencies" in machine.installs[-1]
    assert machine.setup("test").stderr == ""
    (machine.project / "tests" / "go" / "program" / "main.go").write_text("package main // changed\n")
    assert machine.setup("test").returncode == 0
    assert machine.installs.count(GO_BUILD) == 2


def test_go_that_is_named_leads(machine: Machine) -> None:
    machine.java("jdk", compiler=True)
    named = machine.go("1.26.1", "named")
    (machine.bin / "go").unlink()
    done = machine.setup("test", GO=str(named))
    assert done.returncode == 0, done.stderr
    assert GO_BUILD in machine.installs
    (machine.project / ".setup" / "go_driver").unlink()
    done = machine.setup("test", GO="/no/such/go")
    assert done.returncode == 1
    assert "GO=/no/such/go is not a Go 1.18 or later." in done.stderr


def test_without_go_one_who_is_not_root_is_told_the_command(machine: Machine) -> None:
    machine.java("jdk", compiler=True)
    (machine.bin / "go").unlink()
    machine.command("id", "echo 1000")
    machine.apt()
    done = machine.setup("test")
    assert done.returncode == 1
    assert "sudo apt-get update && sudo apt-get install -y golang-go" in done.stderr


def test_node_is_installed(machine: Machine) -> None:
    machine.java("jdk", compiler=True)
    node = (machine.bin / "node").rename(machine.folder / "node")
    machine.command("node", "echo false")  # Too old.
    machine.command("apt-get", f'echo "apt-get $*" >> {machine.record}\ncp {node} {machine.bin}/node')
    done = machine.setup("test")
    assert done.returncode == 0, done.stderr
    assert "apt-get install -y nodejs npm" in machine.installs


def test_postgresql_is_found_or_installed(machine: Machine) -> None:
    machine.java("jdk", compiler=True)
    chosen = machine.project / ".setup" / "postgres_bin"
    assert machine.setup("test").returncode == 0
    assert chosen.read_text() == f"{machine.folder}/postgresql/15/bin\n"
    new = machine.postgres(17).rename(machine.folder / "new")
    shutil.rmtree(machine.folder / "postgresql" / "15")
    machine.postgres(11)  # Too old.
    bring = f"cp -r {new} {machine.folder}/postgresql/17"
    machine.command("apt-get", f'echo "apt-get $*" >> {machine.record}\ncase "$*" in install*) {bring} ;; esac')
    done = machine.setup("test")
    assert done.returncode == 0, done.stderr
    assert machine.installs[-2:] == ["apt-get update", "apt-get install -y postgresql"]
    assert chosen.read_text() == f"{machine.folder}/postgresql/17/bin\n"
    assert machine.setup("test").stderr == ""


def test_prometheus_is_found_or_installed(machine: Machine) -> None:
    machine.java("jdk", compiler=True)
    chosen = machine.project / ".setup" / "prometheus_bin"
    assert machine.setup("test").returncode == 0
    assert chosen.read_text() == f"{machine.bin}\n"
    for name in ("prometheus", "promtool"):
        (machine.bin / name).unlink()
    copies = "".join(f"\ncp {machine.bin}/id {machine.bin}/{name}" for name in ("prometheus", "promtool"))
    machine.command("apt-get", f'echo "apt-get $*" >> {machine.record}{copies}')
    assert machine.setup("test").returncode == 0
    assert machine.installs[-2:] == ["apt-get update", "apt-get install -y --no-install-recommends prometheus"]


def test_chromium_is_found_or_installed(machine: Machine) -> None:
    machine.java("jdk", compiler=True)
    chosen = machine.project / ".setup" / "chromium"
    assert machine.setup("test").returncode == 0
    assert chosen.read_text() == f"{machine.bin}/chromium\n"
    (machine.bin / "chromium").unlink()
    done = machine.setup("test")
    assert done.returncode == 1
    assert "No Chromium found" in done.stderr
    machine.command("apt-get", f'echo "apt-get $*" >> {machine.record}\ncp {machine.bin}/id {machine.bin}/chromium')
    done = machine.setup("test")
    assert done.returncode == 0, done.stderr
    assert machine.installs[-2:] == ["apt-get update", "apt-get install -y chromium"]
    assert machine.setup("test").stderr == ""
    other = machine.folder / "browser"
    machine.write(other, "#!/bin/sh\n")
    chosen.unlink()
    assert machine.setup("test", CHROMIUM=str(other)).returncode == 0
    assert chosen.read_text() == f"{other}\n"


@pytest.mark.shows(
    "Spark Connect and a standalone cluster on each; the table of versions; `make test-versions`; 4.0 in "
    "`make test-official`"
)
def test_an_environment_for_each_spark(machine: Machine) -> None:
    assert machine.setup("python").returncode == 0
    done = machine.setup("spark", "4.1", "4.2")
    assert done.returncode == 0, done.stderr
    assert "Installing pyspark==4.2.* and RocketSpark into .setup/spark-4.2" in done.stderr
    assert machine.installs == [PIP, pip_of_spark("4.1"), pip_of_spark("4.2")]
    assert machine.setup("spark", "4.0.0").returncode == 0
    assert machine.installs[-1] == pip_of_spark("4.0.0").removesuffix(".*")
    machine.no_network.touch()
    again = machine.setup("spark", "4.1", "4.2")
    assert (again.returncode, again.stdout, again.stderr) == (0, "", "")
    with (machine.project / "pyproject.toml").open("a") as file:
        file.write("\n# changed\n")
    changed = machine.setup("spark", "4.1")
    assert changed.returncode == 1
    assert (
        "setup: installing PySpark 4.1 failed, see above: the package index has to be reached once." in changed.stderr
    )
    machine.no_network.unlink()
    assert machine.setup("spark", "4.1").returncode == 0
    assert machine.installs[4:] == [pip_of_spark("4.1")] * 2


def test_the_demo_of_tables_has_a_spark_of_its_own(machine: Machine) -> None:
    home = machine.java("jdk")
    done = machine.setup("tables")
    assert done.returncode == 0, done.stderr
    assert (machine.project / ".setup" / "java_home").read_text() == f"{home}\n"
    assert machine.installs == [pip_of_spark("4.0")]
    assert machine.setup("tables").stderr == ""


def test_without_postgresql_one_who_is_not_root_is_told_the_command(machine: Machine) -> None:
    machine.java("jdk", compiler=True)
    shutil.rmtree(machine.folder / "postgresql")
    machine.command("id", "echo 1000")
    machine.apt()
    done = machine.setup("test")
    assert done.returncode == 1
    assert "sudo apt-get update && sudo apt-get install -y postgresql" in done.stderr


def test_not_root_is_told_the_command(machine: Machine) -> None:
    machine.command("id", "echo 1000")
    machine.apt()
    done = machine.setup("demo")
    assert done.returncode == 1
    assert "sudo apt-get update && sudo apt-get install -y default-jre-headless" in done.stderr
    assert not [line for line in machine.installs if line.startswith("apt-get")]


def test_other_systems_are_told_what_is_missing(machine: Machine) -> None:
    done = machine.setup("demo")
    assert done.returncode == 1
    assert "No Java 17 or later" in done.stderr


def test_missing_venv_module_is_installed(machine: Machine) -> None:
    machine.venv_missing.touch()
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    machine.command(
        "apt-get", f'echo "apt-get $*" >> {machine.record}\ncase "$*" in install*) rm {machine.venv_missing} ;; esac'
    )
    done = machine.setup("python")
    assert done.returncode == 0, done.stderr
    assert machine.installs == ["apt-get update", f"apt-get install -y python{version}-venv", PIP]


def test_no_python_is_said_clearly(machine: Machine) -> None:
    (machine.bin / "python3.11").unlink()
    done = machine.setup("python")
    assert done.returncode == 1
    assert "no Python 3.11 or later found" in done.stderr
    done = machine.setup("python", PYTHON="/no/such/python")
    assert "PYTHON=/no/such/python is not a Python 3.11 or later." in done.stderr


def test_java_home_leads(machine: Machine) -> None:
    machine.java("java-17")
    chosen = machine.java("java-21", version="21")
    assert machine.setup("demo", JAVA_HOME=str(chosen)).returncode == 0
    assert machine.java_home == str(chosen)


def test_files_for_browsers_are_fetched_or_said_to_be_missing(machine: Machine) -> None:
    (machine.project / "src" / "rocketspark" / "console" / "no_assets").touch()
    home = machine.java("java-21", version="21")
    failed = machine.setup("console")
    assert failed.returncode == 1
    assert "assets: npm could not fetch htmx.org" in failed.stderr
    assert "the console's files for browsers could not be fetched" in failed.stderr
    demo = machine.setup("demo")
    assert (demo.returncode, machine.java_home) == (0, str(home)), demo.stderr
    assert "The demo goes on without the console in the browser" in demo.stderr
    (machine.project / "src" / "rocketspark" / "console" / "no_assets").unlink()
    assert machine.setup("console").returncode == 0
    assert machine.installs == [PIP, "assets"]
    machine.stamp.unlink()
    assert machine.setup("console").returncode == 0
    assert machine.installs == [PIP, "assets", "assets"]
