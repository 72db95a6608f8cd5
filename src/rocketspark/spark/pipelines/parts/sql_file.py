"""Reads files of `pipeline sql`: sources, SQL steps and sinks, as YAML or as statements. Rule: pure; every mistake is
named with its place in the file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import lark
import msgspec

from rocketspark.errors import ConfigError
from rocketspark.model import typed_json

ROCKETMQ = "rocketmq"
MODES = ("append", "complete", "update", "overwrite")
# Options of a source in a SQL file that say something to the pipeline and not to the format.
_OF_SOURCE = ("schema", "json", "watermark")
_OF_SINK = ("mode", "partitionBy")


class SqlSource(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A source in a file: it becomes a view of the rows that are read.

    `topic` stands for the option of that name. `schema`: DDL of the columns to read; `json`: DDL of the JSON in the
    body, which is read as column `value`; `watermark`: "column delay", such as "storeTime 10 minutes", for streams.
    """

    name: str
    format: str = ROCKETMQ
    topic: str | None = None
    path: str | None = None
    options: dict[str, str | int | float | bool] = {}
    stream: bool = False
    schema: str | None = None
    json: str | None = None
    watermark: str | None = None


class SqlStep(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A step in a file: it becomes a view of a query on earlier views."""

    name: str
    sql: str


class SqlSink(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A sink in a file: where the rows of a view (`from`) or of a query (`sql`) are written."""

    name: str
    view: str | None = msgspec.field(default=None, name="from")
    sql: str | None = None
    format: str = ROCKETMQ
    topic: str | None = None
    path: str | None = None
    options: dict[str, str | int | float | bool] = {}
    mode: str | None = None
    partition_by: list[str] = []


class _Yaml(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    sources: list[SqlSource]
    sinks: list[SqlSink]
    steps: list[SqlStep] = []
    name: str = ""


P = TypeVar("P", SqlSource, SqlSink)


class SqlPlan(NamedTuple):
    """The checked content of a file: its names are unique, and its sinks name views that exist."""

    name: str
    sources: list[SqlSource]
    steps: list[SqlStep]
    sinks: list[SqlSink]

    @property
    def views(self) -> list[str]:
        """The names of the views, in the order in which they are made."""
        return [source.name for source in self.sources] + [step.name for step in self.steps]


def read_plan(path: Path, variables: Mapping[str, str] | None = None) -> SqlPlan:
    """Read the plan in a .yaml, .yml or .sql file. `variables`: what ${name} stands for in it. Raises ConfigError."""
    try:
        text = path.read_text("utf-8-sig")
    except OSError as e:
        raise ConfigError(f"{path}: {e.strerror or e}") from None
    except UnicodeDecodeError as e:
        raise ConfigError(f"{path}: it is no UTF-8 text ({e.reason} at byte {e.start})") from None
    try:
        text = substitute(text, variables or {})
        if path.suffix.lower() in (".yaml", ".yml"):
            return parse_yaml(text, path.stem)
        if path.suffix.lower() == ".sql":
            return parse_sql(text, path.stem)
    except ConfigError as e:
        raise ConfigError(f"{path}: {e}") from None
    raise ConfigError(f"{path}: a file that ends in .yaml, .yml or .sql is needed")


def substitute(text: str, variables: Mapping[str, str]) -> str:
    """Replace every ${name} in the text; $${ stands for ${. Raises ConfigError for a name without a value."""

    def value(found: re.Match[str]) -> str:
        if found[0].startswith("$$"):
            return found[0][1:]
        if found[1] not in variables:
            raise ConfigError(f"${{{found[1]}}} has no value: give it with --var {found[1]}=…")
        return variables[found[1]]

    return re.sub(r"\$?\$\{([A-Za-z_][\w.-]*)\}", value, text)


def parse_yaml(text: str, name: str) -> SqlPlan:
    """Parse the plan of a YAML text. Raises ConfigError."""
    try:
        import yaml
    except ModuleNotFoundError:
        raise ConfigError("YAML needs a package: pip install 'rocketspark[pipelines]', or write it as .sql") from None
    try:
        found = typed_json.convert(yaml.load(text, _loader()), _Yaml)
    except yaml.YAMLError as e:
        raise ConfigError(f"it is no YAML: {' '.join(str(e).split())}") from None
    except RecursionError:
        raise ConfigError("it is no YAML of ours: it is nested too deeply") from None
    except msgspec.ValidationError as e:
        raise ConfigError(f"{e} (`$` is the file)") from None
    return check(SqlPlan(found.name or name, found.sources, found.steps, found.sinks))


@cache
def _loader() -> Any:
    """Return PyYAML's safe loader, but times stay texts, as options are, and so do words that only look like
    a number.
    """
    import yaml

    class Loader(yaml.SafeLoader):
        pass

    def number_or_text(read: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        def made(loader: Any, node: Any) -> Any:
            try:
                return read(loader, node)
            except (ValueError, KeyError):
                return str(node.value)

        return made

    safe: Any = yaml.constructor.SafeConstructor
    Loader.add_constructor("tag:yaml.org,2002:timestamp", safe.construct_yaml_str)
    own = {"int": safe.construct_yaml_int, "float": safe.construct_yaml_float, "bool": safe.construct_yaml_bool}
    for kind, read in own.items():
        Loader.add_constructor(f"tag:yaml.org,2002:{kind}", number_or_text(read))
    return Loader


# The query of a view or sink is Spark's to read: all from AS on.
_GRAMMAR = r"""
start: source | view | sink
source: "CREATE"i STREAMING? "SOURCE"i name "USING"i name options?
view: "CREATE"i ("TEMPORARY"i | "TEMP"i)? "VIEW"i name QUERY
sink: "CREATE"i "SINK"i name "USING"i name options? QUERY
options: "OPTIONS"i "(" [pair ("," pair)*] ")"
pair: key "="? value
key: WORD ("." WORD)* | STRING
?value: STRING | NUMBER | BOOLEAN
name: WORD | QUOTED
STREAMING: "STREAMING"i
BOOLEAN.2: /(true|false)\b/i
QUERY.3: /AS\b[\s\S]*/i
WORD: /[A-Za-z_]\w*/
QUOTED: /`[^`]+`/
STRING: /'(?:[^'\\]|\\[\s\S]|'')*'|"(?:[^"\\]|\\[\s\S]|"")*"/
NUMBER: /-?\d+(\.\d+)?/
%ignore /\s+/
"""


@cache
def _parser() -> lark.Lark:
    return lark.Lark(_GRAMMAR, parser="lalr", lexer="contextual")


def parse_sql(text: str, name: str) -> SqlPlan:
    """Parse the plan of statements parted by semicolons: CREATE [STREAMING] SOURCE, CREATE VIEW, CREATE SINK.

    Raises ConfigError.
    """
    plan = SqlPlan(name, [], [], [])
    for line, statement in statements(text):
        try:
            _add(plan, _parser().parse(_without_comments(statement)).children[0])
        except lark.exceptions.UnexpectedInput as e:
            at = line + max(0, (e.line or 1) - 1) if isinstance(e.line, int) and e.line > 0 else line
            raise ConfigError(
                f"line {at}: CREATE [STREAMING] SOURCE name USING format [OPTIONS (…)], CREATE VIEW name AS query or"
                f" CREATE SINK name USING format [OPTIONS (…)] AS query is needed, not {_shortened(statement)!r}"
            ) from None
        except ConfigError as e:
            raise ConfigError(f"line {line}: {e}") from None
    return check(plan)


# Spark's own pieces: a comment goes on behind a backslash at the end of its line; a raw text has no escapes.
_PIECE = re.compile(
    r"""(?<!\w)[rR](?:'[^']*'|"[^"]*")|'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*"|`[^`]*`|--(?:\\\n|[^\n])*|/\*|;"""
    r"""|(?:(?!(?<!\w)[rR]['"])[^'"`;/-])+|.""",
    re.DOTALL,
)
_IN_COMMENT = re.compile(r"/\*(?!\+)|\*/")


def _pieces(text: str) -> Iterator[tuple[int, str]]:
    """Return the pieces of a text, each with its place: texts, names and comments are whole. Raises ConfigError."""
    at = 0
    while piece := _PIECE.match(text, at):
        end = _comment_end(text, at) if piece[0] == "/*" else piece.end()
        yield at, text[at:end]
        at = end


def statements(text: str) -> Iterator[tuple[int, str]]:
    """Return the statements of a text that are not empty, each with the number of its first line; a semicolon in quotes
    or comments does not end one.
    """
    parts: list[str] = []
    start: int | None = None
    for at, said in _pieces(text):
        if said == ";":
            if start is not None:
                yield text.count("\n", 0, start) + 1, "".join(parts)
            parts, start = [], None
            continue
        if start is None:
            if said.startswith(("--", "/*")) or not said.strip():
                continue
            start = at + len(said) - len(said.lstrip())
            said = said.lstrip()
        parts.append(said)
    if start is not None:
        yield text.count("\n", 0, start) + 1, "".join(parts)


def _without_comments(statement: str) -> str:
    """Return a statement with its lines where they were; hints to Spark, which look like comments, stay."""
    pieces = (said for _, said in _pieces(statement))
    return "".join(
        " " + "\n" * said.count("\n") if said.startswith(("--", "/*")) and said[:3] != "/*+" else said
        for said in pieces
    )


def _comment_end(text: str, start: int) -> int:
    """Return where a comment or a hint ends that begins there: comments may hold others. Raises ConfigError."""
    depth = 1
    for mark in _IN_COMMENT.finditer(text, start + 2):
        depth += 1 if mark[0] == "/*" else -1
        if not depth:
            return mark.end()
    # Spark refuses it too: what follows would be left out, and nobody told.
    line = text.count("\n", 0, start) + 1
    raise ConfigError(f"line {line}: a comment begins that nothing ends; one in it needs an end of its own")


def _add(plan: SqlPlan, tree: Any) -> None:
    """Add a statement to the plan."""
    names = [_name(child) for child in tree.children if isinstance(child, lark.Tree) and child.data == "name"]
    query = next((str(c)[2:].strip() for c in tree.children if isinstance(c, lark.Token) and c.type == "QUERY"), "")
    options = _options(next((c for c in tree.children if isinstance(c, lark.Tree) and c.data == "options"), None))
    if tree.data != "source" and not query:
        raise ConfigError(f"{names[0]}: a query is needed after AS")
    if tree.data == "view":
        plan.steps.append(SqlStep(name=names[0], sql=query))
    elif tree.data == "source":
        special = _taken(options, _OF_SOURCE)
        stream = any(isinstance(c, lark.Token) and c.type == "STREAMING" for c in tree.children)
        plan.sources.append(SqlSource(name=names[0], format=names[1], options=dict(options), stream=stream, **special))
    else:
        special = _taken(options, _OF_SINK)
        partitions = [part.strip() for part in special.get("partitionBy", "").split(",") if part.strip()]
        sink = SqlSink(
            name=names[0],
            format=names[1],
            sql=query,
            options=dict(options),
            mode=special.get("mode"),
            partition_by=partitions,
        )
        plan.sinks.append(sink)


def _taken(options: dict[str, str], names: Sequence[str]) -> dict[str, str]:
    """Take options of some names out, in any case, as all names of options may be."""
    found: dict[str, str] = {}
    for given in list(options):
        if (name := {one.lower(): one for one in names}.get(given.lower())) is not None:
            found[name] = options.pop(given)
    return found


def _name(tree: Any) -> str:
    return str(tree.children[0]).strip("`")


def _options(tree: Any) -> dict[str, str]:
    found: dict[str, str] = {}
    for pair in tree.children if tree is not None else ():
        if pair is None:
            continue
        key, value = pair.children
        name = ".".join(_literal(part) for part in key.children)
        if known := next((one for one in found if one.lower() == name.lower()), ""):
            raise ConfigError(f"option {known} stands there twice")
        found[name] = _literal(value)
    return found


def _literal(token: Any) -> str:
    text = str(token)
    if token.type != "STRING":
        return text
    return re.sub(rf"\\u([0-9A-Fa-f]{{4}})|\\([\s\S])|{text[0] * 2}", partial(_unescaped, text[0]), text[1:-1])


# Characters after a backslash in Spark's SQL texts that do not stand for themselves.
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "b": "\b", "0": "\0", "Z": "\x1a", "%": "\\%", "_": "\\_"}


def _unescaped(quote: str, found: re.Match[str]) -> str:
    if found[1] is not None:
        return chr(int(found[1], 16))
    if found[2] is not None:
        return _ESCAPES.get(found[2], found[2])
    return quote


def check(plan: SqlPlan) -> SqlPlan:
    """Return the plan with its formats in the spelling used here. Raises ConfigError if the plan cannot be run."""
    plan = plan._replace(sources=list(map(_as_here, plan.sources)), sinks=list(map(_as_here, plan.sinks)))
    if not plan.sinks:
        raise ConfigError("there is no sink: nothing would be written")
    if not plan.sources:
        raise ConfigError("there is no source: nothing would be read")
    views: set[str] = set()
    for name in plan.views:
        if not re.fullmatch(r"[A-Za-z_]\w*", name):
            raise ConfigError(f"{name!r} is no name of a view: letters, digits and _ are allowed")
        if name.lower() in views:
            raise ConfigError(f"the name {name} is given twice")
        views.add(name.lower())
    names: set[str] = set()
    for sink in plan.sinks:
        if not re.fullmatch(r"[\w.-]+", sink.name) or sink.name in (".", ".."):
            raise ConfigError(f"{sink.name!r} is no name of a sink: letters, digits, '.', '_' and '-' are allowed")
        if sink.name in names:
            raise ConfigError(f"the name {sink.name} is given to two sinks: each has its own checkpoint")
        names.add(sink.name)
        if mistake := _mistake_of_sink(sink, views):
            raise ConfigError(f"sink {sink.name}: {mistake}")
    for source in plan.sources:
        if mistake := _mistake_of_source(source):
            raise ConfigError(f"source {source.name}: {mistake}")
    return plan


def _as_here(part: P) -> P:
    """Return a source or sink whose format is named as here: Spark takes its name in any case."""
    return msgspec.structs.replace(part, format=ROCKETMQ) if part.format.lower() == ROCKETMQ else part


def _mistake_of_sink(sink: SqlSink, views: Collection[str]) -> str:
    """Return what is wrong with a sink, "" if nothing is. `views`: the names of all views, in small letters."""
    if (sink.view is None) == (sink.sql is None):
        return "one of `from` (a view) and `sql` (a query) is needed"
    if sink.view is not None and sink.view.lower() not in views:
        return f"there is no view {sink.view}; there are: {', '.join(sorted(views))}"
    if sink.mode is not None and sink.mode not in MODES:
        return f"mode is {sink.mode!r}; one of {', '.join(MODES)} is needed"
    if sink.mode == "update" and sink.format == ROCKETMQ:
        return (
            "Spark writes no topic with mode update; append with a watermark writes each sum once it is final, complete"
            " writes all sums each time"
        )
    return ""


def _mistake_of_source(source: SqlSource) -> str:
    """Return what is wrong with a source, "" if nothing is."""
    if source.json and any(name.lower() == "decode" for name in source.options):
        return "json and the option decode both make a column value: leave one out"
    if source.watermark and not source.stream:
        return "a watermark is for streams; say so, or leave it out"
    if source.watermark and len(source.watermark.split(None, 1)) != 2:
        return f"watermark is {source.watermark!r}; 'storeTime 10 minutes' is one"
    return ""


def options_of(part: SqlSource | SqlSink) -> dict[str, str]:
    """Return the options of a source or sink as Spark takes them."""
    found = {
        name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in part.options.items()
    }
    for name, value in (("topic", part.topic), ("path", part.path)):
        if value is not None:
            found[name] = value
    return found


def _shortened(statement: str) -> str:
    words = " ".join(statement.split())
    return words if len(words) <= 60 else f"{words[:60]}…"
