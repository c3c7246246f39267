"""Statements that try to read a file, to change something or to run for ever: each is one sentence, and reads nothing."""

import itertools
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rung.analysis.query import FUNCTIONS, checked, query
from rung.errors import UsageError
from rung.trace.table import SCHEMA, Trace

TABLES = ("events", "ops")
SECRET = "the secret of another file"
READERS = ("read_csv", "read_parquet", "read_ipc", "read_json", "read_ndjson", "scan_csv", "READ_CSV", "Read_Parquet")
CALLS = (
    "{f}('{p}')", '"{f}"(\'{p}\')', "`{f}`('{p}')", "[{f}]('{p}')", "{f}/**/('{p}')", "{f} ('{p}')", "{f}\n('{p}')",
    "{f}--\n('{p}')", "main.{f}('{p}')", "{f}($${p}$$)", "{f}(E'{p}')", "TABLE({f}('{p}'))", "LATERAL {f}('{p}')",
)  # fmt: skip
AROUND = (
    "select * from {x}",
    "select * from events, {x} as f",
    "select * from events union all select * from {x}",
    "with a as (select * from {x}) select * from a",
    "select (select min(column_1) from {x}) as a from events",
    "select * from events where name in (select column_1 from {x})",
    "from {x} select *",
)
OTHERS = [
    "drop table events", "delete from events", "truncate table events", "insert into events values (1)",
    "update events set dur = 0", "create table x as select * from events", "create view x as select 1",
    "select * into x from events", "copy events to '{p}'", "attach '{p}' as x", "pragma database_list", "explain select 1",
    "show tables", "describe events", "set x = 1", "use x", "vacuum", "grant all on events to x", "call x()", "begin",
    "select 1; drop table events", "select 1; select 2", "select * from events for update", "values (1), (2)",
    "select * from '{p}'", 'select * from "{p}"', "select * from `{p}`", "select * from events.events", "table nowhere",
    "select * from information_schema.tables", "select * from pg_catalog.pg_tables", "select * from sqlite_master",
    "select pg_read_file('{p}')", "select load_extension('{p}')", "select system('id')", "select getenv('HOME')",
    "select lo_import('{p}')", "select readfile('{p}')", "select glob('{p}')", "select version()", "select current_user",
    "with recursive r as (select 1 as a union all select a from r) select * from r", "select @@x", "select $1", "select ?",
    "select :x", "select x'41'", "select * from unnest([1])", "select * from generate_series(1, 1000000000)",
    "select * from range(1000000000)", "select a.read_csv('{p}') from events", "with x as (delete from events) select 1",
    "select {{fn read_csv('{p}')}}", "/* /* */ select 1", "select 'a", 'select "a', "select (", ")", "", ";", ";;", "--",
    "/**/", "\x00", "\ud800", "select" * 1000, "select " + "(" * 3000 + "1" + ")" * 3000, "select " + "- " * 5000 + "1",
    "select " + "not " * 5000 + "true", "x" * 200_000, "select * from " + "(select * from " * 2000 + "events" + ")" * 2000,
]  # fmt: skip


@pytest.fixture(scope="module")
def secret(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("secret") / "secret.csv"
    path.write_text(f"column_1\n{SECRET}\n")
    return path


def hostile(path: str) -> list[str]:
    calls = [call.format(f=reader, p=path) for reader, call in itertools.product(READERS, CALLS)]
    around = [text.format(x=call) for text, call in zip(itertools.cycle(AROUND), calls * 2, strict=False)]
    return [*around, *(text.format(p=path) for text in OTHERS)]


def test_two_hundred_hostile_statements_are_refused(secret: Path) -> None:
    statements = hostile(str(secret))
    assert len(set(statements)) >= 200
    for sql in statements:
        with pytest.raises(UsageError) as refused:
            checked(sql, TABLES)
        said = str(refused.value)
        assert "\n" not in said, sql
        assert len(said) < 600, sql
        assert SECRET not in said


def test_a_file_is_read_by_no_statement_even_where_polars_would(secret: Path) -> None:
    """Whatever comes through the check runs on tables alone."""
    sql = f"select * from read_csv('{secret}')"
    assert SECRET in str(pl.SQLContext().execute(sql).collect())  # so it is the check that refuses it
    for text in hostile(str(secret)):
        with pytest.raises(UsageError):
            query(Trace(pl.DataFrame(schema=SCHEMA)), text)


def test_a_missing_file_is_a_sentence() -> None:
    with pytest.raises(UsageError, match="none 'read_parquet'"):
        query(Trace(pl.DataFrame(schema=SCHEMA)), "select * from read_parquet('/nowhere/x.parquet')")


@pytest.mark.parametrize("sql", [f"select * from events where name ~ '{'(' * 5000}'", "select a * from events"])
def test_a_refusal_is_one_short_sentence_without_names_of_code(sql: str) -> None:
    with pytest.raises(UsageError) as refused:
        query(Trace(pl.DataFrame(schema=SCHEMA)), sql)
    assert len(str(refused.value)) < 400
    assert "\n" not in str(refused.value)
    assert "<class" not in str(refused.value)


WORDS = [
    *"select from where group by having order limit offset with recursive as union all except intersect join on using".split(),  # noqa: SIM905
    *"events ops name dur read_csv read_parquet sum count a b * ( ) , . ; ' \" ` [ ] { } -- /* */ // + - = < > || :: $$ E'".split(),  # noqa: SIM905
    *"'/etc/passwd' 1 2.5 null true case when then end cast distinct over partition between in is not exists lateral".split(),  # noqa: SIM905
]  # fmt: skip


@given(st.one_of(st.text(), st.lists(st.sampled_from(WORDS), max_size=25).map(" ".join)))
def test_any_text_is_a_statement_over_known_tables_or_a_sentence(sql: str) -> None:
    try:
        text, reads = checked(sql, TABLES)
    except UsageError as refused:
        assert "\n" not in str(refused)  # noqa: PT017
        return
    assert reads <= set(TABLES)
    assert "read_" not in text.lower().replace('"read_csv"', "").replace('"read_parquet"', "").replace("'", "")
    again, _ = checked(text, TABLES)  # what runs is itself a statement that passes, and means the same
    assert again == text


SAME = [
    "select name, sum(dur) / 1000.0 as us, count(*) as n, count(distinct name) as d from events group by all order by name",
    "select name, dur from events order by dur nulls first, name",
    "select name, dur from events order by dur desc nulls last, name",
    "select name, row_number() over (partition by kind order by dur desc) as r from events order by name, r",
    "select * exclude (kind) from events",
    "select * replace (dur + 1 as dur) from events",
    "select substring(name, 1, 1) as a, name || 'x' as b, dur // 2 as c, dur % 2 as d, cast(dur as double) as e from events",
    "select extract(year from date '2026-01-02') as y, try_cast(name as int) as i from events",
    "select a.name from events a left anti join ops b on a.name = b.name order by a.name",
    "select name from events where name ilike '%A%' or name ~ '^b' and dur between 1 and 5 and name is not null",
    "select name from events where name = 'it''s \\' or dur in (select dur from ops)",
    "with x as (select dur from events) select median(dur) as m, max(dur) filter (where dur > 1) as f from x",
    "select case when dur > 1 then 'long' else 'short' end as k, coalesce(dur, 0) as c from events",
    "select distinct kind from events order by kind limit 1 offset 1",
    "select a.name from events a left semi join ops b on a.name = b.name order by a.name",
    "select a.name from events a anti join ops b on a.name = b.name order by a.name",
    "select name, row_number() over (partition by kind order by dur) as r from events qualify r = 1 order by name",
    "from events select name",
    "select [1, 2] as l, interval '1d' as i, trim(both 'a' from name) as t, position('a' in name) as p from events",
]


@pytest.mark.parametrize("sql", SAME)
def test_the_statement_that_runs_means_what_was_written(sql: str) -> None:
    frame = pl.DataFrame({"name": ["a", "b", None, "it's \\"], "dur": [3, None, 1, 2], "kind": ["x", "y", "x", "y"]})
    context = pl.SQLContext({"events": frame.lazy(), "ops": frame.head(1).lazy()})
    assert context.execute(checked(sql, TABLES)[0]).collect().equals(context.execute(sql).collect())


NEWER = {"regexp_replace": (2, 1)}  # functions that older polars lacks; Python 3.10 has 2.0


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_every_function_on_the_list_is_one_of_polars(name: str) -> None:
    if tuple(map(int, pl.__version__.split(".")[:2])) < NEWER.get(name, (0, 0)):
        pytest.skip(f"polars {pl.__version__} has no {name}")
    context = pl.SQLContext({"t": pl.DataFrame({"a": [1]}).lazy()})
    for arguments in ("a", "a, a"):
        try:
            context.execute(f"select {name}({arguments}) from t").collect()
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
            assert "unsupported function" not in str(error)  # noqa: PT017
