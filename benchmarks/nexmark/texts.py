"""The texts of Nexmark's queries and of its generator. Needs no packages, so every engine reads it.

A comment `/*due , EXPRESSION AS due */` in a query says when a result row was due: when the last
event that it needs was. Only measurements of latency have that column.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
DELAY_SECONDS = 4
EVENTS_PER_MS = 10
"""In measurements: ten thousand events per second of event time."""

REFUSED = {
    4: "an aggregation without a window above another one",
    6: "a window function over rows",
    9: "a window function over rows",
    15: "an aggregate of distinct values",
    16: "an aggregate of distinct values",
    18: "a window function over rows",
    19: "a window function over rows",
}
"""The queries that Spark's analyser does not accept as streams, and why."""

SPARK_DIFFERS = {
    5: "runs; equal to DuckDB, and to Spark with `spark.sql.exchange.reuse=false`: otherwise Spark "
    "does not find the watermark of one of the aggregations, and has no result",
    12: "runs; its windows are of processing time and differ from run to run, so only the bids of "
    "each bidder are compared, with DuckDB",
}
"""Queries whose results are not compared with Spark's row by row, and why."""


@dataclass(frozen=True, slots=True)
class NexmarkQuery:
    """One query, for Spark and for the oracle."""

    number: int
    spark: str
    oracle: str
    mode: str = "append"
    keys: int = 0

    def __str__(self) -> str:
        return f"q{self.number}"


def queries() -> list[NexmarkQuery]:
    """All queries, by number."""
    found = []
    for head, body in _parts("queries.sql"):
        number, _, how = head.partition(" | ")
        mode, _, keys = how.partition(" ")
        text, _, oracle = body.partition(">>>")
        found.append(
            NexmarkQuery(
                int(number),
                text.strip(),
                (oracle or text).strip(),
                mode or "append",
                int(keys or 0),
            )
        )
    return found


def flink_texts() -> dict[int, str]:
    """The queries that Spark accepts, as Flink SQL."""
    return {int(head): body.strip() for head, body in _parts("flink.sql")}


def python_texts() -> dict[int, str]:
    """Queries that call functions of `functions.py`; the same text for all engines."""
    return {int(head): body.strip() for head, body in _parts("python.sql")}


def timed(text: str) -> str:
    """A query with a column `due`; without a comment that says what it is, it is `ts`."""
    shown = re.sub(r"/\*due (.*?)\*/", r"\1", text, flags=re.DOTALL)
    return f"SELECT *{'' if shown != text else ', ts AS due'} FROM ({shown}) answers"


def generator(numbers: str) -> str:
    """The SQL that computes events from a relation with the columns `value` and `ts`."""
    return (HERE / "generator.sql").read_text().format(numbers=numbers)


def _parts(name: str) -> list[tuple[str, str]]:
    """The heads and bodies of a file's sections."""
    found = []
    for section in (HERE / name).read_text().split("\n--- q")[1:]:
        head, _, body = section.partition("\n")
        found.append((head, body))
    return found
