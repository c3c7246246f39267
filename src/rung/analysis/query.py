"""SQL over a trace: its tables, and every analysis by name.

A query is checked before polars sees it: one SELECT over known tables, with known functions, and nothing that opens a file. The
statement is parsed, each node of its tree must be on a list, and what runs is written anew from that tree. So a comment, a quote or an
escape that polars would read otherwise than the parser has no effect.
"""

from __future__ import annotations

import difflib
import logging
import re
from collections.abc import Collection
from typing import Any, ClassVar

import polars as pl
import polars.selectors as cs
import sqlglot
from sqlglot import exp
from sqlglot.dialects.postgres import Postgres
from sqlglot.tokens import TokenType

from rung.analysis.analyses import ANALYSES, table
from rung.errors import UsageError
from rung.trace.table import SCHEMA, Trace

LONGEST, LONGEST_REASON = 100_000, 300  # characters of a query, and of what polars says of one
RECORDED = ("events", "counters", "memory_records")
_WRITE = "Write one SELECT ... FROM events, or from an analysis."
_MISSING = re.compile(r"Required keyword: '\w+' missing for <class '(?:\w+\.)*(\w+)'>")  # as sqlglot says it
_QUERIES = (exp.Select, exp.SetOperation, exp.Subquery)
_NODES = frozenset({
    # queries
    exp.Select, exp.Union, exp.Except, exp.Intersect, exp.Subquery, exp.With, exp.CTE, exp.TableAlias, exp.Table,
    exp.From, exp.Join, exp.Where, exp.Group, exp.Having, exp.Qualify, exp.Order, exp.Ordered, exp.Limit, exp.Offset,
    exp.Distinct, exp.Window, exp.WindowSpec, exp.Filter, exp.Alias, exp.Exists,
    # names and values
    exp.Column, exp.Identifier, exp.Star, exp.Literal, exp.Boolean, exp.Null, exp.Paren, exp.Tuple, exp.Var, exp.Interval,
    exp.Array, exp.Bracket, exp.DataType, exp.DataTypeParam,
    # operators
    exp.And, exp.Or, exp.Not, exp.Xor, exp.Is, exp.In, exp.Between, exp.Like, exp.ILike, exp.RegexpLike, exp.RegexpILike,
    exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.NullSafeEQ, exp.NullSafeNEQ, exp.Any, exp.All,
    exp.Add, exp.Sub, exp.Mul, exp.Div, exp.IntDiv, exp.Mod, exp.Neg, exp.DPipe,
    exp.BitwiseAnd, exp.BitwiseOr, exp.BitwiseXor, exp.BitwiseNot, exp.StartsWith,
    # what has a syntax of its own
    exp.Case, exp.If, exp.Cast, exp.TryCast, exp.Extract, exp.Trim, exp.StrPosition, exp.Anonymous,
})  # fmt: skip
FUNCTIONS = frozenset(
    """
    abs acos acosd asin asind atan atan2 atan2d atand cbrt ceil ceiling cos cosd cot cotd degrees div exp floor ln log
    log10 log1p log2 mod pi pow power radians round sign sin sind sqrt tan tand
    trunc truncate
    bit_and bit_count bit_or bit_xor
    coalesce greatest if ifnull least nullif
    bit_length char_length character_length concat concat_ws ends_with group_concat initcap left length listagg lower
    lpad ltrim normalize octet_length regexp_like regexp_replace replace reverse right rpad rtrim split_part starts_with
    string_agg string_to_array strpos substr substring upper
    date date_part datetime day hour minute month second strftime strptime time timestamp year
    array_agg array_contains array_get array_length array_lower array_mean array_reverse array_sum array_to_string
    array_unique array_upper unnest
    avg corr count covar covar_pop covar_samp first last max median min quantile_cont quantile_disc stddev
    stddev_samp sum var var_samp variance
    cume_dist dense_rank first_value lag last_value lead ntile percent_rank rank row_number
    columns
    """.split()  # noqa: SIM905
)


class _Polars(Postgres):
    """What polars' SQL is nearest to. Every function stays under the name that was written."""

    class Tokenizer(Postgres.Tokenizer):
        KEYWORDS: ClassVar[dict[str, Any]] = {**Postgres.Tokenizer.KEYWORDS, "//": TokenType.DIV}

    class Parser(Postgres.Parser):
        FUNCTIONS: ClassVar[dict[str, Any]] = {}
        FUNCTION_PARSERS: ClassVar[dict[str, Any]] = {
            name: Postgres.Parser.FUNCTION_PARSERS[name]
            for name in ("CAST", "TRY_CAST", "EXTRACT", "POSITION", "TRIM")
            if name in Postgres.Parser.FUNCTION_PARSERS
        }

    class Generator(Postgres.Generator):
        TRANSFORMS: ClassVar[dict[Any, Any]] = {
            # Without what sqlglot writes anew for Postgres: SEMI and ANTI joins and QUALIFY, which polars has.
            **{kind: how for kind, how in Postgres.Generator.TRANSFORMS.items() if kind is not exp.Select},
            exp.IntDiv: lambda self, node: self.binary(node, "//"),
            exp.TryCast: lambda self, node: f"TRY_CAST({self.sql(node, 'this')} AS {self.sql(node, 'to')})",
        }


def checked(sql: str, tables: Collection[str]) -> tuple[str, set[str]]:
    """The query as polars is to run it, and which of `tables` it reads.

    Raises UsageError where it is no single SELECT, or names a table or a function that is not known.
    """
    if len(sql) > LONGEST:
        raise UsageError(f"the query has {len(sql):,} characters: write one of at most {LONGEST:,}.")
    try:
        tree = _parsed(sql)
        own = {str(cte.alias) for cte in tree.find_all(exp.CTE)}
        named = {_table(node, own, tables) for node in tree.find_all(exp.Table)}
        for node in tree.walk():
            _check(node)
        return tree.sql(dialect=_Polars, identify=True, comments=False, normalize_functions=False), named & set(tables)
    except RecursionError:
        raise UsageError("the query is nested too deeply: write it with fewer parentheses or terms.") from None


def _parsed(sql: str) -> exp.Expr:
    logging.getLogger("sqlglot").setLevel(logging.ERROR)  # it warns of what is refused below
    try:
        statements = [each for each in sqlglot.parse(sql, read=_Polars) if each is not None]
    except sqlglot.errors.SqlglotError as error:
        raise UsageError(f"the query cannot be answered: {_unparsed(error)} {_WRITE}") from None
    if len(statements) != 1 or not isinstance(statements[0], _QUERIES):
        raise UsageError(f"a query reads the tables of the trace. {_WRITE}")
    return statements[0]


def _unparsed(error: Exception) -> str:
    """What the parser found and where, without the excerpt that it underlines for a terminal."""
    for found in getattr(error, "errors", ()):
        missing = _MISSING.match(str(found["description"]))
        what = f"{missing[1].upper()} is not complete" if missing else str(found["description"]).rstrip(".")
        return f"{what} in line {found['line']}, column {found['col']}."
    return f"{str(error).splitlines()[0].rstrip('.')}."


def _table(node: exp.Table, own: set[str], tables: Collection[str]) -> str:
    """The name of a table that is there. own: those that the query defines itself."""
    if isinstance(node.this, exp.Identifier) and not node.args.get("db") and (node.name in own or node.name in tables):
        return str(node.name)
    named = node.this.name if isinstance(node.this, exp.Func) else ".".join(part.name for part in node.parts)
    near = difflib.get_close_matches(named, tables, 1)
    known = f"Did you mean {near[0]}?" if near else f"Tables: {', '.join(tables)}."
    raise UsageError(f"a query reads the tables of the trace, and there is none {named!r}. {known}")


def _check(node: exp.Expr) -> None:
    if type(node) not in _NODES:
        raise UsageError(f"a query here cannot have {node.key.upper()}: write a SELECT of columns and functions.")
    if isinstance(node, exp.With) and node.args.get("recursive"):
        raise UsageError("a query here cannot be recursive: write WITH without RECURSIVE.")
    if isinstance(node, exp.Anonymous) and str(node.name).lower() not in FUNCTIONS:
        near = difflib.get_close_matches(str(node.name).lower(), sorted(FUNCTIONS), 1)
        raise UsageError(f"a query has no function {node.name!r}{f'; did you mean {near[0]}?' if near else '.'}")


def catalogue() -> pl.DataFrame:
    """One row a table: its name and its columns."""
    nothing = Trace(pl.DataFrame(schema=SCHEMA))
    found = _tables(nothing, [*RECORDED, *ANALYSES], 1)
    return pl.DataFrame([{"table": name, "columns": ", ".join(frame.columns)} for name, frame in found.items()])


def query(trace: Trace, sql: str, *, steps: int = 1) -> pl.DataFrame:
    """The answer of a SELECT in polars' SQL. Only the analyses that it names are worked out, and it reads nothing else.

    Raises UsageError, which says what is wrong, where the text is no SELECT, or a table, column or function does not exist.
    """
    text, reads = checked(sql, (*RECORDED, *ANALYSES))
    named = _tables(trace, [name for name in (*RECORDED, *ANALYSES) if name in reads], steps)
    # SQL knows no coded texts: a kind is compared as the text that it is.
    frames = {
        name: frame.lazy().with_columns(pl.col(pl.Enum, pl.Categorical).cast(pl.String))
        for name, frame in named.items()
    }
    try:
        answer = pl.SQLContext(frames).execute(text).collect()
        # polars' SQL reads 1e3 and 1000.0 as decimals, and has dates: a document knows numbers and texts.
        return answer.with_columns(cs.decimal().cast(pl.Float64), cs.temporal().cast(pl.String))
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        raise UsageError(f"the query cannot be answered: {_reason(str(error))}") from None


def _tables(trace: Trace, names: list[str], steps: int) -> dict[str, pl.DataFrame]:
    recorded = {"events": trace.events, "counters": trace.counters, "memory_records": trace.memory}
    return {name: recorded[name] if name in recorded else table(name, trace, steps=steps) for name in names}


def _reason(text: str) -> str:
    """What polars says, without its hints, and without the tree or the pattern that it may print whole."""
    said = " ".join(text.split("\n\n")[0].split()).rstrip(".") + "."
    return said if len(said) <= LONGEST_REASON else f"{said[:LONGEST_REASON]} ..."
