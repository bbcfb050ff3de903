"""The examples in the documentation of Spark's functions, read from the installed Spark.

Literals become columns wherever Spark accepts that, so that the optimiser cannot compute the
result. A relation of an example (`FROM VALUES ...`) becomes a stream of its rows.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from pyspark.sql import DataFrame, SparkSession
from tests.fuzz_sql.both_sides import oracle, types_of

_STATEMENT = re.compile(r"^\s*> (SELECT\b.*?);\s*$", re.DOTALL | re.MULTILINE | re.IGNORECASE)
_WORDS = re.compile(r"\b(FROM|WHERE|GROUP\s+BY|ORDER\s+BY|LIMIT|HAVING)\b", re.IGNORECASE)
_QUOTED = re.compile(r"'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.)*\"|`[^`]*`", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Example:
    """A statement of a function's documentation."""

    function: str
    group: str
    sql: str
    columns: str = field(init=False)
    """What is selected."""
    relation: str = field(init=False)
    """What follows FROM; empty if there is nothing."""
    rest: str = field(init=False)
    """What follows the relation, without the order of rows."""

    def __post_init__(self) -> None:
        parts = _clauses(self.sql)
        object.__setattr__(self, "columns", parts.pop("SELECT")[len("select") :].strip())
        object.__setattr__(self, "relation", parts.pop("FROM", "")[len("from") :].strip())
        parts.pop("ORDER", None)
        object.__setattr__(self, "rest", " ".join(parts.values()))


def _clauses(sql: str) -> dict[str, str]:
    """The clauses of a statement, by their first word."""
    blank = _QUOTED.sub(lambda quoted: "_" * len(quoted[0]), sql)
    depth, depths = 0, []
    for character in blank:
        depth += character in "([{"
        depths.append(depth)
        depth -= character in ")]}"
    starts = [0]
    starts += [word.start() for word in _WORDS.finditer(blank) if depths[word.start()] == 0]
    parts = [sql[start:end].strip() for start, end in zip(starts, [*starts[1:], None], strict=True)]
    return {re.split(r"\s", part)[0].upper(): part for part in parts}


def read_examples(spark: SparkSession) -> dict[str, list[Example]]:
    """The examples of each function; none for a function whose documentation has none."""
    jvm = spark._jvm
    registry = spark._jsparkSession.sessionState().functionRegistry()
    convert = jvm.scala.jdk.javaapi.CollectionConverters
    found = {}
    for name in convert.asJava(registry.listFunction()):
        info = registry.lookupFunction(name).get()
        function = str(info.getName())
        found[function] = [
            Example(function, str(info.getGroup()), statement)
            for statement in _STATEMENT.findall(str(info.getExamples()))
        ]
    return dict(sorted(found.items()))


@dataclass(frozen=True, slots=True)
class Hole:
    """A place in an expression that another expression can take: a literal or a constructor."""

    start: int
    end: int
    kind: str
    """The JSON of its type; empty for a constructor, whose type is not known yet."""


def literals_of(spark: SparkSession, text: str) -> list[Hole]:
    """The literals of an expression, from left to right, that can be columns."""
    return [hole for hole in holes_of(spark, text) if hole.kind]


def holes_of(spark: SparkSession, text: str) -> list[Hole]:
    """The literals and constructors of an expression, from left to right."""
    parser = spark._jsparkSession.sessionState().sqlParser()
    shift = len("SELECT ")
    found = list(oracle(spark).literals(parser, f"SELECT {text}"))
    holes = {
        Hole(int(start) - shift, int(end) + 1 - shift, str(kind))
        for start, end, kind in zip(found[::3], found[1::3], found[2::3], strict=True)
        if kind != '"void"'
    }
    return sorted(holes, key=lambda hole: hole.start)


def filled(text: str, holes: Sequence[Hole], values: Sequence[str | None]) -> str:
    """An expression with other texts in the place of its literals; None leaves one as it is."""
    for hole, value in sorted(zip(holes, values, strict=True), key=lambda pair: -pair[0].start):
        if value is not None:
            text = f"{text[: hole.start]}{value}{text[hole.end :]}"
    return text


@dataclass(slots=True)
class Columns:
    """Literals as columns of one row."""

    names: dict[str, str] = field(default_factory=dict)
    """The name of a column, by the text of its literal."""

    def name(self, literal: str) -> str:
        return self.names.setdefault(literal, f"c{len(self.names)}")

    def row(self, spark: SparkSession) -> DataFrame:
        selected = ", ".join(f"{literal} AS {name}" for literal, name in self.names.items())
        return spark.sql(f"SELECT 1 AS one{', ' if selected else ''}{selected}")


def with_columns(
    spark: SparkSession, texts: Sequence[str]
) -> tuple[Columns, dict[str, tuple[str, str]]]:
    """For each expression the form with as many columns as Spark accepts, and its type."""
    columns = Columns()
    holes = {text: literals_of(spark, text) for text in texts}
    # Some literals are not in the text: their place is that of a whole expression.
    parts = list(dict.fromkeys(t[hole.start : hole.end] for t in texts for hole in holes[t]))
    kinds = dict(zip(parts, types_of(columns.row(spark), parts), strict=True))
    for text in texts:
        holes[text] = [h for h in holes[text] if not kinds[text[h.start : h.end]].startswith("!")]
    names = {
        text: [columns.name(text[hole.start : hole.end]) for hole in holes[text]] for text in texts
    }
    row = columns.row(spark)
    forms: dict[str, tuple[str, str]] = {}

    def take(candidates: dict[str, str]) -> None:
        kinds = types_of(row, list(candidates.values()))
        for (text, candidate), kind in zip(candidates.items(), kinds, strict=True):
            if not kind.startswith("!"):
                forms[text] = (candidate, kind)

    take({text: filled(text, holes[text], names[text]) for text in texts})
    # Some arguments must be constant: find out which.
    left = [text for text in texts if text not in forms]
    singles = [(text, number) for text in left for number in range(len(holes[text]))]

    def only(text: str, chosen: Sequence[int]) -> str:
        values = [name if n in chosen else None for n, name in enumerate(names[text])]
        return filled(text, holes[text], values)

    found = types_of(row, [only(text, [number]) for text, number in singles])
    fits: dict[str, list[int]] = {text: [] for text in left}
    for (text, number), kind in zip(singles, found, strict=True):
        if not kind.startswith("!"):
            fits[text].append(number)
    take({text: only(text, fits[text]) for text in left if fits[text]})
    take({text: only(text, fits[text][:1]) for text in left if fits[text] and text not in forms})
    take({text: text for text in texts if text not in forms})
    return columns, forms
