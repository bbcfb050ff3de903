"""Searches for expressions whose values here differ from Spark's, and shrinks what it finds."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from tests.fuzz_sql.both_sides import (
    Failure,
    Result,
    cells,
    differing,
    our_rows,
    results,
    shown,
    spark_results,
    spark_rows,
)
from tests.fuzz_sql.examples import read_examples
from tests.fuzz_sql.expressions import OPERATORS, Grower, Tree, templates, usable
from tests.fuzz_sql.rows import DERIVED, ZONES, Rows, stored

from epochal import testing

FIXED = {
    "spark.sql.timeType.enabled": "true",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
"""Settings of a session that runs random SQL. Compiling code would take longer than running it."""


MOST_RUNS = 30
"""How many smaller expressions of one seed are tried."""

MOST_FAILING = 2
"""How many expressions of a seed that fail in Spark are compared: each needs a query of its own."""


@dataclass(frozen=True, slots=True)
class Difference:
    """An expression, and the row for which its values differ."""

    seed: int
    settings: dict[str, str]
    text: str
    row: dict[str, Any]
    wanted: str
    found: str

    def __str__(self) -> str:
        settings = " ".join(f"{key.removeprefix('spark.sql.')}={value}" for key, value in
                            self.settings.items())  # fmt: skip
        row = ", ".join(f"{name}={value!r}" for name, value in self.row.items())
        return (
            f"seed {self.seed} ({settings}): SELECT {self.text}; row: {row}; "
            f"Spark has {self.wanted}, we have {self.found}"
        )


@dataclass(slots=True)
class Sides:
    """The same rows for Spark and for us."""

    batch: DataFrame
    stream: DataFrame
    fed: pa.Table

    @staticmethod
    def of(spark: SparkSession, rows: pa.Table) -> Sides:
        batch = stored(spark, rows)
        stream = testing.frame(batch.schema, spark=spark)
        derived = [f"{text} AS {name}" for name, text in DERIVED.items()]
        fed = spark_rows(batch)
        assert isinstance(fed, pa.Table)
        return Sides(batch.selectExpr("*", *derived), stream.selectExpr("*", *derived), fed)

    def theirs(self, texts: Sequence[str]) -> dict[str, Result]:
        return spark_results(self.batch, texts)

    def ours(self, texts: Sequence[str]) -> dict[str, Result]:
        return results(self.stream, texts, lambda frame: our_rows(frame, [self.fed]))


@dataclass(slots=True)
class Tally:
    """How many expressions were compared."""

    equal: int = 0
    failing: int = 0
    """Equal, because both fail in the same way."""
    cells: int = 0
    differences: list[Difference] = field(default_factory=list)


class ExpressionSearch:
    """Compares expressions that follow from a seed."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark, self._runs_left = spark, MOST_RUNS
        for key, value in FIXED.items():
            spark.conf.set(key, value)
        examples = [each for found in read_examples(spark).values() for each in found]
        self._examples = list(dict.fromkeys(e.columns for e in examples if usable(e)))

    def run(self, seed: int, tally: Tally, *, count: int = 600, depth: int = 4) -> None:
        """Grow and compare the expressions of a seed."""
        chance = random.Random(seed)
        settings = {
            "spark.sql.ansi.enabled": chance.choice(("true", "false", "false")),
            "spark.sql.session.timeZone": chance.choice(ZONES),
        }
        for key, value in settings.items():
            self._spark.conf.set(key, value)
        mild = settings["spark.sql.ansi.enabled"] == "true" and chance.random() < 0.8
        rows = Rows(chance, chance.choice([1, 2, 5, 50]), mild=mild).table()
        sides = Sides.of(self._spark, rows)
        texts = chance.sample(self._examples, 60) + chance.sample(OPERATORS, 30)
        row = without_rows(sides.batch)
        grower = Grower(chance, row, templates(self._spark, row, texts))
        trees = {tree.text: tree for tree in grower.grow(count, depth)}
        theirs, ours = self._both(sides, list(trees))
        self._runs_left = MOST_RUNS
        for text, found in ours.items():
            tree, wanted = trees[text], theirs[text]
            if differing(wanted, found) is not None:
                difference = self._shrunk(seed, settings, tree, sides, (wanted, found))
                if difference is not None:
                    tally.differences.append(difference)
            elif isinstance(wanted, Failure):
                tally.failing += 1
            else:
                tally.equal += 1
                tally.cells += len(wanted)

    def _both(
        self, sides: Sides, texts: Sequence[str]
    ) -> tuple[dict[str, Result], dict[str, Result]]:
        theirs = sides.theirs(texts)
        valid = [text for text in texts if not isinstance(theirs[text], Failure)]
        ours = sides.ours(valid)
        for text in [text for text in texts if text not in ours][:MOST_FAILING]:
            ours |= sides.ours([text])
        return theirs, ours

    def _shrunk(
        self,
        seed: int,
        settings: dict[str, str],
        tree: Tree,
        sides: Sides,
        among_others: tuple[Result, Result],
    ) -> Difference | None:
        """The smallest expression and the only row that show the same difference.

        An expression that is right alone is wrong among others, unless one of these has failed.
        """

        def row_of(tree: Tree) -> int | None:
            theirs, ours = self._both(sides, [tree.text])
            return differing(theirs[tree.text], ours[tree.text])

        (wanted, found), smaller = among_others, self._runs_left > 0
        if smaller and row_of(tree) is not None:
            while smaller:
                smaller = False
                for candidate in _smaller(tree):
                    self._runs_left -= 1
                    if self._runs_left > 0 and row_of(candidate) is not None:
                        tree, smaller = candidate, True
                        break
            theirs, ours = self._both(sides, [tree.text])
            wanted, found = theirs[tree.text], ours[tree.text]
        elif isinstance(wanted, Failure) or isinstance(found, Failure):
            return None
        row = differing(wanted, found)
        assert row is not None, f"{tree.text} has other values each time"
        names = [name for name in sides.fed.column_names if _uses(tree.text, name)]
        values = {name: cells(sides.fed.column(name))[row] for name in names}
        return Difference(seed, settings, tree.text, values, shown(wanted, row), shown(found, row))


def without_rows(frame: DataFrame) -> DataFrame:
    """A frame with the same columns, which Spark analyses faster: it reads nothing."""
    spark: Any = frame.sparkSession
    rows = spark._jvm.java.util.ArrayList()
    return DataFrame(spark._jsparkSession.createDataFrame(rows, frame._jdf.schema()), spark)


def _smaller(tree: Tree) -> Iterator[Tree]:
    """Expressions with less in them: a part alone, or a literal in the place of a part."""
    yield from (part for part in tree.parts if part is not None and part.parts)
    for number, part in enumerate(tree.parts):
        if part is None:
            continue
        before, after = tree.parts[:number], tree.parts[number + 1 :]
        yield Tree(tree.template, (*before, None, *after))
        for less in _smaller(part):
            yield Tree(tree.template, (*before, less, *after))


def _uses(text: str, name: str) -> bool:
    return re.search(rf"\b{name}\b", text) is not None
