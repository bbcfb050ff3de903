"""A query that was changed goes on from state that `evolve` made fit, and its output is right."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from tests.spark.evolving import PROVIDERS, Query
from tests.spark.sessions import session_with

pytestmark = pytest.mark.timeout(600)

FIRST = [("a", 5), ("b", 70), ("a", 3), ("c", 1)]


@pytest.fixture(scope="module")
def spark() -> SparkSession:
    return session_with({"spark.sql.streaming.stateStore.autoSnapshotRepair.enabled": "false"})


class Totals(StatefulProcessor):  # type: ignore[misc]
    """Keeps the sum of each key, a list and a map; `wide` has one more column in each."""

    def __init__(self, *, wide: bool) -> None:
        self.more = ", extra BIGINT" if wide else ""
        self.wide = wide

    def init(self, handle: Any) -> None:
        self.total = handle.getValueState("total", f"n BIGINT{self.more}")
        self.all = handle.getListState("all", f"v BIGINT{self.more}")
        self.counts = handle.getMapState("counts", "v BIGINT", f"n BIGINT{self.more}")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        one = (1,) if self.wide else ()
        for row in rows:
            before = self.total.get() or (0, 0)
            extra = (before[1] + 1,) if self.wide else ()
            self.total.update((before[0] + row.v, *extra))
            self.all.appendValue((row.v, *one))
            counted = self.counts.getValue((row.v,)) or (0, 0)
            self.counts.updateValue((row.v,), (counted[0] + 1, *one))
        kept = (self.total.get(), list(self.all.get()), sorted(self.counts.iterator()))
        yield Row(k=key[0], shown=repr(kept))


def totals(rows: DataFrame, *, wide: bool) -> DataFrame:
    return rows.groupBy("k").transformWithState(
        statefulProcessor=Totals(wide=wide),
        outputStructType="k STRING, shown STRING",
        outputMode="Update",
        timeMode="None",
    )


def test_a_processor_whose_variables_have_one_more_column_goes_on(
    spark: SparkSession, tmp_path: Path
) -> None:
    query = Query(spark, tmp_path, PROVIDERS[1])
    query.add("0.json", FIRST)
    query.run(lambda rows: totals(rows, wide=False))
    for variable in ("total", "all", "counts"):
        query.edit("evolve", "--variable", variable, "--add", "extra:long=100")
    query.edit("repartition", "--partitions", "3")
    query.add("1.json", [("a", 4), ("d", 2)])
    query.run(lambda rows: totals(rows, wide=True))
    assert query.latest["a"] == (
        "((12, 101), [(5, 100), (3, 100), (4, 1)], "
        "[((3,), (1, 100)), ((4,), (1, 1)), ((5,), (1, 100))])",
    )
    assert query.latest["d"] == ("((2, 1), [(2, 1)], [((2,), (1, 1))])",)
