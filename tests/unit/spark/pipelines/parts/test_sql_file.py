"""Files of `pipeline sql`: the same plan from YAML and from statements; mistakes are named with their place."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketspark.errors import ConfigError
from rocketspark.spark.pipelines.parts.sql_file import (
    SqlPlan,
    SqlSink,
    SqlSource,
    SqlStep,
    options_of,
    parse_sql,
    parse_yaml,
    read_plan,
    statements,
    substitute,
)

pytestmark = pytest.mark.shows(
    "`sql`: YAML or statements; as a declarative pipeline",
    "mended: tracebacks (YAML 2026-02-30, 0b_, deep nesting, deep JSON, 5,000 digits; 120-character names; "
    "NaN in JSON; exit code)",
    "mended: without effect and without a word: `pushDownPredicate` on a stream, options of decoding in "
    "pipelines that keep bodies, `json` beside `decode` in `pipeline sql`",
)

YAML = """
name: totals
sources:
  - name: orders
    topic: orders
    stream: true
    json: "id INT, price DOUBLE"
    watermark: storeTime 10 minutes
    options: {startingOffsets: earliest, minPartitions: 4, failOnDataLoss: false}
  - {name: rates, format: parquet, path: rates/}
steps:
  - name: dear
    sql: SELECT value.id, value.price FROM orders WHERE value.price > 10
sinks:
  - {name: dear-orders, from: dear, topic: dear}
  - name: files
    sql: SELECT * FROM rates
    format: parquet
    path: out
    mode: overwrite
    partition_by: [day]
"""

SQL = """
-- What sells; semicolons in comments part nothing.
CREATE STREAMING SOURCE orders USING rocketmq OPTIONS (
  topic 'orders', startingOffsets = 'earliest', minPartitions 4, failOnDataLoss false,
  json 'id INT, price DOUBLE', watermark 'storeTime 10 minutes'
);
create source rates using parquet options (path "rates/");
/* a view; or two */
CREATE TEMPORARY VIEW dear AS
  SELECT value.id, value.price FROM orders WHERE value.price > 10;
CREATE SINK `dear-orders` USING rocketmq OPTIONS (topic 'dear') AS SELECT * FROM dear;
CREATE SINK files USING parquet OPTIONS (path 'out', mode 'overwrite', partitionBy 'day')
AS SELECT * FROM rates
"""


def test_yaml() -> None:
    plan = parse_yaml(YAML, "file")
    assert plan == SqlPlan(
        "totals",
        [
            SqlSource(
                name="orders",
                topic="orders",
                stream=True,
                json="id INT, price DOUBLE",
                watermark="storeTime 10 minutes",
                options={"startingOffsets": "earliest", "minPartitions": 4, "failOnDataLoss": False},
            ),
            SqlSource(name="rates", format="parquet", path="rates/"),
        ],
        [SqlStep(name="dear", sql="SELECT value.id, value.price FROM orders WHERE value.price > 10")],
        [
            SqlSink(name="dear-orders", view="dear", topic="dear"),
            SqlSink(
                name="files",
                sql="SELECT * FROM rates",
                format="parquet",
                path="out",
                mode="overwrite",
                partition_by=["day"],
            ),
        ],
    )
    assert options_of(plan.sources[0]) == {
        "startingOffsets": "earliest",
        "minPartitions": "4",
        "failOnDataLoss": "false",
        "topic": "orders",
    }


def test_statements_say_the_same() -> None:
    plan, same = parse_sql(SQL, "totals"), parse_yaml(YAML, "file")
    assert plan.name == same.name
    assert plan.steps == same.steps
    assert [options_of(source) for source in plan.sources] == [options_of(source) for source in same.sources]
    told = [(s.name, s.format, s.stream, s.json, s.schema, s.watermark) for s in plan.sources]
    assert told == [(s.name, s.format, s.stream, s.json, s.schema, s.watermark) for s in same.sources]
    assert [sink.sql for sink in plan.sinks] == ["SELECT * FROM dear", "SELECT * FROM rates"]
    assert [(s.name, s.format, s.mode, s.partition_by, options_of(s)) for s in plan.sinks] == [
        (s.name, s.format, s.mode, s.partition_by, options_of(s)) for s in same.sinks
    ]


@pytest.mark.shows(
    "a sink of `pipeline sql` with mode update to a topic, which Spark ended after other sinks had written; "
    "bodies in the wire format read without a registry"
)
@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("sources: [", "it is no YAML"),
        ("- a", "Expected `object`, got `array`"),
        ("sources: []", "missing required field `sinks`"),
        ("sources: []\nsinks: []", "there is no sink"),
        (
            "sources: [{name: a, topic: t, json: x INT, options: {Decode: avro}}]\nsinks: [{name: s, from: a}]",
            "source a: json and the option decode both make a column value",
        ),
        ("sources: []\nsinks: [{name: a, sql: SELECT 1}]", "there is no source"),
        (YAML.replace("stream: true", "strem: true"), "unknown field `strem` - at `$.sources[0]`"),
        (YAML.replace("name: rates,", "name: Orders,"), "the name Orders is given twice"),
        (YAML.replace("from: dear", "from: daer"), "there is no view daer; there are: dear, orders, rates"),
        (YAML.replace("from: dear, ", ""), "sink dear-orders: one of `from`"),
        (YAML.replace("mode: overwrite", "mode: replace"), "mode is 'replace'; one of append"),
        (
            "sources: [{name: t, topic: t}]\nsinks: [{name: s, from: t, topic: u, mode: update}]",
            "sink s: Spark writes no topic with mode update; append with",
        ),
        (YAML.replace("name: files", "name: dear-orders"), "the name dear-orders is given to two sinks"),
        (YAML.replace("name: files", "name: ../files"), "'../files' is no name of a sink"),
        (YAML.replace("name: rates", "name: my rates"), "'my rates' is no name of a view"),
        (YAML.replace("stream: true", "stream: false"), "source orders: a watermark is for streams"),
        (YAML.replace("storeTime 10 minutes", "storeTime"), "watermark is 'storeTime'"),
    ],
)
def test_mistakes_in_yaml(text: str, error: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_yaml(text, "file")
    assert error in str(caught.value)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "there is no sink"),
        ("\n\nDROP TABLE orders", "line 3: CREATE [STREAMING] SOURCE"),
        ("CREATE SOURCE a USING rocketmq OPTIONS (topic 'x'", "line 1:"),
        ("CREATE SOURCE a USING rocketmq OPTIONS (topic 'x', topic 'y');", "line 1: option topic stands there twice"),
        ("CREATE SOURCE a USING rocketmq OPTIONS (topic 'x', TOPIC 'y');", "line 1: option topic stands there twice"),
        ("CREATE SOURCE a USING rocketmq;\nCREATE SINK b USING parquet AS ;", "line 2: b: a query is needed after AS"),
        ("CREATE SINK b USING parquet", "line 1:"),
    ],
)
def test_mistakes_in_statements(text: str, error: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_sql(text, "file")
    assert error in str(caught.value)


def test_statements_keep_what_is_quoted() -> None:
    text = "a ';' \"x;\\\"\" `;` -- ;\n b /* ; ' */ c;;\n\n -- only this\n;d 'it''s;'"
    assert list(statements(text)) == [(1, "a ';' \"x;\\\"\" `;` -- ;\n b /* ; ' */ c"), (5, "d 'it''s;'")]


@pytest.mark.shows(
    "mended: `pipeline sql`: raw texts (`r'\\'`), comments within comments and comments that go on behind a backslash, "
    "as Spark reads them: a semicolon in one parted a statement"
)
def test_raw_texts_and_comments_are_sparks() -> None:
    text = """/* a /* b; */ ; 'q */ CREATE /* c /* d */ e */ VIEW v -- it's c:\\
    ; not yet
    AS SELECT /*+ REPARTITION(3) */ replace(a, r'\\', '/;') AS b, R"x;\\" FROM bar; d"""
    (first, view), (second, _) = statements(text)
    assert (first, second) == (1, 3)
    assert view.startswith("CREATE /* c /* d */")
    plan = parse_sql(f"CREATE SOURCE a USING csv; {view}; CREATE SINK s USING noop AS SELECT * FROM v", "file")
    assert plan.steps == [
        SqlStep(name="v", sql="""SELECT /*+ REPARTITION(3) */ replace(a, r'\\', '/;') AS b, R"x;\\" FROM bar""")
    ]


@pytest.mark.parametrize("place", ["{}; CREATE SINK t USING noop AS SELECT 2", "{} WHERE id > 3", "; {}"])
@pytest.mark.parametrize("comment", ["/* never ended", "/* one /* within */", "/* reads /data/*.csv */"])
def test_a_comment_without_an_end_hides_nothing(place: str, comment: str) -> None:
    plan = "CREATE SOURCE a USING csv;\nCREATE SINK s USING noop AS SELECT * FROM a\n"
    with pytest.raises(ConfigError, match=r"^line 3: a comment begins that nothing ends"):
        parse_sql(plan + place.format(comment), "file")


def test_what_looks_like_a_hint_and_is_a_comment() -> None:
    text = """CREATE SOURCE a --+---; a table's edge
    USING csv; CREATE SINK s USING noop AS SELECT /*+ X */ 1 /* a /*+ hint */ --+ of a comment"""
    assert [sink.sql for sink in parse_sql(text, "file").sinks] == ["SELECT /*+ X */ 1"]


@given(st.text(alphabet="abrR;'\"`-/*\n\\ "))
def test_statements_lose_nothing(text: str) -> None:
    found: list[tuple[int, str]] = []
    with suppress(ConfigError):  # In a comment that nothing ends.
        found.extend(statements(text))
    assert all(statement in text and statement.strip() for _, statement in found)
    assert all(text.split("\n")[line - 1] for line, _ in found)


@given(st.text())
def test_any_text_is_a_plan_or_a_mistake(text: str) -> None:
    for parse in (parse_sql, parse_yaml):
        with pytest.raises(ConfigError):
            parse(text, "file")


def test_variables(tmp_path: Path) -> None:
    assert substitute("${a}-$${a}-${b.c}", {"a": "1", "b.c": "2"}) == "1-${a}-2"
    file = tmp_path / "p.sql"
    file.write_text("CREATE SOURCE a USING rocketmq OPTIONS (topic '${t}'); CREATE SINK b USING noop AS SELECT 1")
    assert read_plan(file, {"t": "x"}).sources[0].options == {"topic": "x"}
    with pytest.raises(ConfigError, match=r"p\.sql: \$\{t\} has no value: give it with --var t="):
        read_plan(file)


@pytest.mark.parametrize(
    ("name", "content", "error"),
    [
        ("none.yaml", None, "No such file"),
        ("a.txt", b"x", "ends in .yaml, .yml or .sql"),
        ("a.sql", b"\xff\xfe", "it is no UTF-8 text"),
    ],
)
def test_files_that_are_none(tmp_path: Path, name: str, content: bytes | None, error: str) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        read_plan(tmp_path / name)
    assert error in str(caught.value)
    assert name in str(caught.value)


@pytest.mark.shows("mended: `.sql` pipelines: '\\t', `partitionby` in lower case")
def test_texts_are_read_as_spark_reads_them() -> None:
    [sink] = parse_sql(
        r"""CREATE SOURCE a USING rocketmq OPTIONS (topic 'x');
        CREATE SINK s USING csv OPTIONS (p 'o', sep '\t', a '\n', b '\\', c 'it\'s''', d "a""b\u00e9", e '\q\%') AS
        SELECT 1""",
        "n",
    ).sinks
    assert sink.options == {"p": "o", "sep": "\t", "a": "\n", "b": "\\", "c": "it's'", "d": 'a"bé', "e": "q\\%"}


@pytest.mark.shows("mended: `.sql` pipelines: '\\t', `partitionby` in lower case")
def test_options_of_the_pipeline_may_be_cased_as_all_are() -> None:
    plan = parse_sql(
        "CREATE STREAMING SOURCE a USING rocketmq OPTIONS (topic 'x', WATERMARK 'storeTime 1 minute', Json 'id INT');"
        "CREATE SINK s USING csv OPTIONS (path 'o', partitionby 'a, b', MODE 'append') AS SELECT 1",
        "n",
    )
    assert (plan.sources[0].watermark, plan.sources[0].json) == ("storeTime 1 minute", "id INT")
    assert (plan.sinks[0].partition_by, plan.sinks[0].mode) == (["a", "b"], "append")
    with pytest.raises(ConfigError, match="mode stands there twice"):
        parse_sql(
            "CREATE SOURCE a USING rocketmq; CREATE SINK s USING csv OPTIONS (mode 'a', MODE 'b') AS SELECT 1", "n"
        )


@pytest.mark.shows("mended: `pipeline sql` takes USING RocketMQ for a format of others, without its cluster")
def test_formats_may_be_cased_as_sql_is() -> None:
    plan = parse_sql(
        "CREATE SOURCE a USING ROCKETMQ OPTIONS (topic 'x'); CREATE SINK s USING RocketMQ AS SELECT 1;"
        "CREATE SINK f USING PARQUET OPTIONS (path 'o') AS SELECT 1",
        "n",
    )
    assert [part.format for part in (*plan.sources, *plan.sinks)] == ["rocketmq", "rocketmq", "PARQUET"]
    plan = parse_yaml("sources: [{name: a, topic: t, format: RocketMQ}]\nsinks: [{name: s, from: a, topic: u}]", "n")
    assert plan.sources[0].format == "rocketmq"


ODD_YAML = """
sources:
  - {name: orders, topic: %s, options: {startingTimestamp: %s}}
sinks:
  - {name: f, from: orders, format: parquet, path: out/}
"""


@pytest.mark.parametrize("time", ["2026-02-28T00:00:00Z", "2026-02-30T00:00:00Z", "2026-02-28", "0b_", "1e_"])
def test_what_only_looks_like_a_time_or_number_of_yaml_is_text(time: str) -> None:
    [source] = parse_yaml(ODD_YAML % ("0b_", time), "x").sources
    assert (source.topic, source.options) == ("0b_", {"startingTimestamp": time})


def test_what_is_called_a_truth_of_yaml_and_is_none_is_a_mistake_of_one_line() -> None:
    with pytest.raises(ConfigError, match=r"Expected `array`, got `str` - at `\$.sources`"):
        parse_yaml("sources: !!bool maybe\nsinks: []", "x")


def test_nesting_beyond_all_measure_is_a_mistake() -> None:
    with pytest.raises(ConfigError, match="nested too deeply"):
        parse_yaml("[" * 100_000, "x")


def test_the_page_shows_one_pipeline_twice() -> None:
    page = (Path(__file__).resolve().parents[5] / "docs" / "use" / "pipelines" / "sql.md").read_text("utf-8")
    [one] = re.findall(r"```yaml\n(# totals.yaml.*?)```", page, re.DOTALL)
    [other] = re.findall(r"```sql\n(-- totals.sql.*?)```", page, re.DOTALL)
    plans = [
        parse(substitute(text, {"least": "10"}), "totals") for parse, text in ((parse_yaml, one), (parse_sql, other))
    ]

    def said(plan: SqlPlan) -> list[object]:
        sources = [(s.name, s.format, options_of(s), s.stream, s.schema, s.json, s.watermark) for s in plan.sources]
        steps = [(step.name, " ".join(step.sql.split())) for step in plan.steps]
        sinks = [
            (s.name, s.format, options_of(s), s.mode, s.partition_by, s.sql or f"SELECT * FROM {s.view}")
            for s in plan.sinks
        ]
        return [sources, steps, sinks]

    assert said(plans[0]) == said(plans[1])
