"""Sources, sinks and the logs around them: compaction, several sources, interrupted batches."""

from pyspark.sql import DataFrame, SparkSession
from tests.golden.cases_aggregate import windowed_counts
from tests.golden.inputs import events, over_events, read_events
from tests.golden.place import Place
from tests.golden.shape import Case, InputFile

COMPACT_BY_THREE = {
    "spark.sql.streaming.fileSink.log.compactInterval": "3",
    "spark.sql.streaming.fileSource.log.compactInterval": "3",
}


def as_they_come(spark: SparkSession, place: Place) -> DataFrame:
    return read_events(spark, place, "events")


def two_files_and_a_rate(spark: SparkSession, place: Place) -> DataFrame:
    rate = (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", "5")
        .option("numPartitions", "1")
        .option("advanceMillisPerBatch", "1000")
        .load()
    )
    # The rate source moves its offset but adds no row: how often it fires is the trigger's affair.
    ticks = rate.where("value < 0").selectExpr("'rate' AS source", "value AS id", "value AS v")
    early = read_events(spark, place, "early").selectExpr("'early' AS source", "id", "v")
    late = read_events(spark, place, "late").selectExpr("'late' AS source", "id", "v")
    return early.union(late).union(ticks)


def _later(files: tuple[InputFile, ...]) -> tuple[InputFile, ...]:
    """Only the files of the second step and after: in the first run the source is empty."""
    return tuple(file for file in files if file.step > 0)


def two_named_files(spark: SparkSession, place: Place) -> DataFrame:
    early = read_events(spark, place, "early", name="morning").select("id", "v")
    late = read_events(spark, place, "late", name="evening").select("id", "v")
    return early.union(late)


def two_files(spark: SparkSession, place: Place) -> DataFrame:
    early = read_events(spark, place, "early").select("id", "v")
    return early.union(read_events(spark, place, "late").select("id", "v"))


def ticks(spark: SparkSession, place: Place) -> DataFrame:
    return spark.readStream.format("rate").option("rowsPerSecond", "3").load()


def rapid_ticks(spark: SparkSession, place: Place) -> DataFrame:
    return spark.readStream.format("rate-micro-batch").option("rowsPerBatch", "3").load()


TWO_SOURCES = events("early", rows=5) + _later(events("late", rows=5))

CASES = (
    Case(
        name="file_sink",
        about="file source to parquet file sink, both logs compacted every 3 batches",
        query=as_they_come,
        files=events("events"),
        sink="parquet",
        conf=COMPACT_BY_THREE,
    ),
    Case(
        name="file_sink_cleanup",
        about="as `file_sink`, with expired files of both logs already deleted",
        query=as_they_come,
        files=events("events"),
        sink="parquet",
        conf={
            **COMPACT_BY_THREE,
            "spark.sql.streaming.fileSink.log.cleanupDelay": "1ms",
            "spark.sql.streaming.fileSource.log.cleanupDelay": "1ms",
            "spark.sql.streaming.minBatchesToRetain": "2",
        },
    ),
    over_events(
        "file_sink_counts",
        "windowed aggregation into a parquet file sink: state, source log and sink log",
        windowed_counts,
        sink="parquet",
        conf=COMPACT_BY_THREE,
    ),
    Case(
        name="several_sources",
        about="two file sources, one without an offset at first, and rate-micro-batch",
        query=two_files_and_a_rate,
        files=TWO_SOURCES,
    ),
    Case(
        name="offsets_v2",
        about="offset log version 2 with unnamed sources, one without an offset at first",
        query=two_files,
        files=TWO_SOURCES,
        conf={"spark.sql.streaming.offsetLog.formatVersion": "2"},
        since="4.2",
    ),
    Case(
        name="named_sources",
        about="source evolution: two named sources, offset log version 2",
        query=two_named_files,
        files=TWO_SOURCES,
        conf={"spark.sql.streaming.queryEvolution.enableSourceEvolution": "true"},
        since="4.2",
    ),
    over_events(
        "named_sink",
        "sink evolution: commit log version 3",
        windowed_counts,
        sink="parquet",
        sink_name="archive",
        conf={"spark.sql.streaming.queryEvolution.enableSinkEvolution": "true"},
        since="4.3",
    ),
    Case(
        name="rate",
        about="rate source, its start time in a log of its own",
        query=ticks,
        steps=3,
        trigger={"processingTime": "1 second"},
        run_seconds=6,
        resumable=False,
    ),
    Case(
        name="async_progress",
        about="asynchronous progress tracking: only some batches are in the logs",
        query=rapid_ticks,
        steps=3,
        sink="noop",
        trigger={"processingTime": "100 milliseconds"},
        run_seconds=6,
        options={
            "asyncProgressTrackingEnabled": "true",
            "asyncProgressTrackingCheckpointIntervalMs": "1500",
        },
        resumable=False,
    ),
    over_events(
        "interrupted",
        "the last batch wrote its offsets and its state, then failed before its commit",
        windowed_counts,
        fails_in=9,
        fails="after the state is written",
    ),
    over_events(
        "interrupted_early",
        "the last batch wrote its offsets and failed before any state was written",
        windowed_counts,
        fails_in=9,
        fails="before the rows are computed",
    ),
)
