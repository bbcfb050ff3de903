"""Aggregations, limits, deduplication and session windows, over one file source."""

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.golden.inputs import events, json_rows, over_events, read_events
from tests.golden.place import Place
from tests.golden.shape import Case, Read


def windowed_counts(spark: SparkSession, place: Place) -> DataFrame:
    rows = read_events(spark, place, "events")
    counts = rows.groupBy(F.window("ts", "1 minute"), "k").agg(
        F.count("*").alias("n"), F.sum("v").alias("total")
    )
    return counts.selectExpr("window.start AS start", "k", "n", "total")


def totals(spark: SparkSession, place: Place) -> DataFrame:
    rows = read_events(spark, place, "events")
    return rows.agg(F.count("*").alias("n"), F.sum("v").alias("total"), F.max("ts").alias("last"))


def first_ninety(spark: SparkSession, place: Place) -> DataFrame:
    # Constant rows: which of the input rows a limit lets through is Spark's to choose.
    return read_events(spark, place, "events").selectExpr("'row' AS row").limit(90)


def distinct_pairs(spark: SparkSession, place: Place) -> DataFrame:
    return read_events(spark, place, "events").selectExpr("k", "v % 9 AS r").dropDuplicates()


def distinct_triples(spark: SparkSession, place: Place) -> DataFrame:
    rows = read_events(spark, place, "events").selectExpr("k", "v % 9 AS r", "v % 2 AS odd")
    return rows.dropDuplicates()


def distinct_in_time(spark: SparkSession, place: Place) -> DataFrame:
    rows = json_rows(spark, place, "events")
    seconds = rows.selectExpr("date_trunc('SECOND', timestamp_micros(us)) AS ts", "k")
    return seconds.withWatermark("ts", "30 seconds").dropDuplicates(["k", "ts"])


def distinct_within_watermark(spark: SparkSession, place: Place) -> DataFrame:
    # Twins lie in the same file, so no batch boundary can come between them.
    rows = read_events(spark, place, "events").selectExpr("ts", "k", "id DIV 2 AS twin")
    return rows.dropDuplicatesWithinWatermark(["twin"]).select("twin")


def sessions(spark: SparkSession, place: Place) -> DataFrame:
    rows = read_events(spark, place, "events")
    found = rows.groupBy(F.session_window("ts", "10 seconds"), "k").agg(
        F.count("*").alias("n"), F.sum("v").alias("total")
    )
    return found.selectExpr(
        "session_window.start AS start", "session_window.end AS end", "k", "n", "total"
    )


def per_key(spark: SparkSession, place: Place) -> DataFrame:
    rows = read_events(spark, place, "events")
    return rows.groupBy("k").agg(F.count("*").alias("n"), F.avg("v").alias("mean"))


def distinct_then_counted(spark: SparkSession, place: Place) -> DataFrame:
    rows = read_events(spark, place, "events").selectExpr("ts", "k", "v % 20 AS r")
    distinct = rows.dropDuplicates(["ts", "k", "r"])
    counts = distinct.groupBy(F.window("ts", "2 minutes"), "k").agg(F.count("*").alias("n"))
    return counts.selectExpr("window.start AS start", "k", "n")


CODEC = "spark.sql.streaming.stateStore.compression.codec"

CASES = (
    over_events(
        "windowed",
        "windowed aggregation with watermark, HDFS-backed state with snapshots",
        windowed_counts,
    ),
    over_events(
        "retention",
        "as `windowed`, keeping 2 batches: logs purged, state files cleaned up",
        windowed_counts,
        conf={"spark.sql.streaming.minBatchesToRetain": "2"},
    ),
    *(
        over_events(
            f"codec_{codec}",
            f"as `windowed`, with state files compressed by {codec}",
            windowed_counts,
            conf={CODEC: codec},
        )
        for codec in ("zstd", "snappy", "lzf")
    ),
    over_events(
        "row_checksum",
        "as `windowed`, with a checksum in every state row",
        windowed_counts,
        conf={"spark.sql.streaming.stateStore.rowChecksum.enabled": "true"},
        since="4.1",
    ),
    over_events(
        "aggregation_v1",
        "as `windowed`, in state format 1: the value row repeats the key",
        windowed_counts,
        conf={"spark.sql.streaming.aggregation.stateFormatVersion": "1"},
    ),
    over_events(
        "per_key",
        "aggregation without watermark in update mode",
        per_key,
        mode="update",
        key=("k",),
    ),
    over_events(
        "global",
        "aggregation without keys: an empty key row, partition 0 alone",
        totals,
        mode="complete",
    ),
    over_events("limit", "global limit", first_ninety),
    over_events("dedup", "dropDuplicates without watermark", distinct_pairs),
    Case(
        name="dedup_watermark",
        about="dropDuplicates with the event time among the keys, so that state is evicted",
        query=distinct_in_time,
        files=events("events", rows=25),
        reads=(Read(changes=True),),
    ),
    over_events(
        "dedup_within_watermark", "dropDuplicatesWithinWatermark", distinct_within_watermark
    ),
    over_events(
        "session",
        "session window aggregation: one prefix key column, several rows per key",
        sessions,
        session_keys=1,
    ),
    over_events(
        "chained",
        "two stateful operators: dropDuplicates, then a windowed aggregation",
        distinct_then_counted,
        reads=tuple(Read({"operatorId": operator}, changes=True) for operator in ("0", "1")),
    ),
)

CHANGED = (
    Case(
        name="dedup_of_three",
        about="`dedup` after it was changed: dropDuplicates has gained a column",
        query=distinct_triples,
        files=events("events"),
    ),
)
"""Queries that have no archive: they are started on the checkpoint of another case."""
