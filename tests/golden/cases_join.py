"""Stream-stream joins: four stores per partition in formats 1 and 2, one from format 3 on."""

from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.golden.inputs import clicks, events, read_events
from tests.golden.place import Place
from tests.golden.shape import CHANGELOG, ROCKSDB, UNIQUE_IDS, Case, Query, Read

VIEWS = events("views", rows=8)
CLICKS = clicks("clicks", VIEWS)
STORES = (
    "left-keyToNumValues",
    "left-keyWithIndexToValue",
    "right-keyToNumValues",
    "right-keyWithIndexToValue",
)
FORMAT = "spark.sql.streaming.join.stateFormatVersion"
BY_STORE = tuple(Read({"storeName": store}, changes=True) for store in STORES)
BY_TIME = tuple(
    Read({"storeName": f"{side}-{kind}"})
    for side in ("left", "right")
    for kind in ("keyWithTsToValues", "tsWithKey")
)
BY_SIDE = tuple(Read({"joinSide": side}) for side in ("left", "right"))


def _joined(spark: SparkSession, place: Place, how: str) -> DataFrame:
    # Two views and up to two clicks share a key, so that a key has several values.
    views = read_events(spark, place, "views").selectExpr("ts AS seen", "id DIV 2 AS view", "k")
    clicked = read_events(spark, place, "clicks", schema="us LONG, id LONG").selectExpr(
        "ts AS clicked", "id DIV 2 AS click"
    )
    matches = "view = click AND clicked >= seen AND clicked <= seen + INTERVAL 30 SECONDS"
    return views.join(clicked, on=F.expr(matches), how=how).select("view", "k", "seen", "clicked")


def inner(spark: SparkSession, place: Place) -> DataFrame:
    return _joined(spark, place, "inner")


def left_outer(spark: SparkSession, place: Place) -> DataFrame:
    return _joined(spark, place, "left_outer")


def over_views(name: str, about: str, query: Query, **more: Any) -> Case:
    """A case whose state is read by store and by side if nothing else is said."""
    usual = {"files": VIEWS + CLICKS, "reads": BY_STORE + BY_SIDE}
    return Case(name=name, about=about, query=query, **{**usual, **more})


CASES = (
    over_views(
        "join_inner",
        "inner stream-stream join with watermarks and a time range, state format 2",
        inner,
    ),
    over_views(
        "join_outer", "left outer stream-stream join, state format 2 (`matched` flags)", left_outer
    ),
    over_views(
        "join_v1",
        "inner stream-stream join, state format 1 (no `matched` flags)",
        inner,
        conf={FORMAT: "1"},
        until="4.0",
    ),
    over_views(
        "join_rocksdb",
        "left outer join, state format 2, four RocksDB stores per partition",
        left_outer,
        conf=CHANGELOG,
    ),
    over_views(
        "join_rocksdb_ids",
        "inner join, state format 2, RocksDB checkpoint format 2: four ids per partition",
        inner,
        conf={**CHANGELOG, **UNIQUE_IDS},
        since="4.1",  # 4.0's reader does not find the files of such a join
    ),
    over_views(
        "join_v3",
        "left outer join, state format 3: one RocksDB store with column families",
        left_outer,
        conf={**CHANGELOG, FORMAT: "3"},
        since="4.1",
    ),
    over_views(
        "join_v4",
        "left outer join, state format 4: one RocksDB store keyed by time",
        left_outer,
        conf={**ROCKSDB, FORMAT: "4"},
        reads=BY_TIME + BY_SIDE,
        since="4.3",  # 4.2 knows the format and refuses it as unfinished
    ),
)
