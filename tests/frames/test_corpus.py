"""Every query of the corpus gives on Epochal what it gives on Spark: output and final state.

In append mode all output rows are equal, in update mode the last row of each key, in complete mode
the last output. State is equal row for row, in the same partitions, apart from what depends on the
order in which rows arrived: the indexes of a join's rows, the order of a collected list, and the
last bits of floating-point numbers.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.corpus.queries import AGGREGATIONS, QUERIES, Query
from tests.corpus.running import Row, run
from tests.frames.streams_of_words import plain, sparks

import epochal
from epochal.state import read_state

EVERY_DAY = {"session, append", "left join with time bounds", "dropDuplicates within watermark"}
LONG = {query.name for number, query in enumerate(AGGREGATIONS) if number % 4 in (1, 2)}
"""Each aggregate once: by user or by window. Every one, of every type, is in test_aggregates."""


def cases() -> list[Any]:
    return [pytest.param(query, marks=marks_of(query), id=query.name) for query in QUERIES]


def marks_of(query: Query) -> Any:
    if query.name in LONG:
        return pytest.mark.long
    return () if query.name in EVERY_DAY else pytest.mark.full


@pytest.mark.usefixtures("nothing_left_running")
@pytest.mark.parametrize("query", cases())
def test_epochal_gives_what_spark_gives(query: Query, spark: SparkSession, tmp_path: Path) -> None:
    theirs, their_checkpoint = run(spark, query, tmp_path / "spark", sparks)
    ours, our_checkpoint = run(spark, query, tmp_path / "epochal", epochal.write_stream)
    assert rounded(ours.result(query)) == rounded(theirs.result(query))
    if query.stateful:
        assert state_of(our_checkpoint) == state_of(their_checkpoint)


def rounded(rows: list[Row]) -> list[Any]:
    return sorted((about(row) for row in rows), key=repr)


def about(value: Any) -> Any:
    """A value whose doubles are rounded to twelve digits, without the sign of zero.

    The least of 0.0 and -0.0 is the one that came first. Sums of quarters may lie exactly between
    two roundings, where a last bit decides. So all are moved a little before they are rounded.
    """
    match value:
        case "-0.0":
            return 0.0
        case float():
            return float(f"{value * (1 + 1e-13):.12g}")
        case dict():
            return {key: about(each) for key, each in value.items()}
        case list() | tuple():
            return [about(each) for each in value]
    return value


def state_of(checkpoint: Path) -> dict[str, list[Any]]:
    """The rows of every store: (partition, key, value)."""
    found: dict[str, list[Any]] = {}
    for path in sorted(checkpoint.glob("state/*/_metadata/metadata")):
        described = json.loads(path.read_text().partition("\n")[2])
        operator = described["operatorInfo"]["operatorId"]
        name = described["operatorInfo"]["operatorName"]
        for store in described["stateStoreInfo"]:
            rows = read_state(str(checkpoint), operator, store["storeName"]).to_pylist()
            found[f"{operator} {name} {store['storeName']}"] = sorted(
                (comparable(row) for row in rows), key=repr
            )
    return found


def comparable(row: dict[str, Any]) -> Any:
    key, value = row["key"], row["value"]
    if key is not None:
        key = {name: each for name, each in key.items() if name != "index"}
    if value is not None:
        value = {n: len(v) if v and n.startswith("buf") else v for n, v in value.items()}
    return [row["partition_id"], about(plain(key)), about(plain(value))]
