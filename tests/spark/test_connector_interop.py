"""One checkpoint and one output directory, used by Spark and by our connectors in turn.

Spark runs micro-batches; ours runs an epoch between them by hand: positions from Spark's offset,
rows through the real readers and writers, then the offset and commit logs, as the engine would.
What is read back, by Spark and by its own log, must be every row once.
"""

from __future__ import annotations

import time
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from tests.waiting import eventually

from epochal.checkpoint import Checkpoint
from epochal.checkpoint.entries import (
    CommitEntry,
    CommitLog,
    OffsetEntry,
    OffsetLog,
    QueryMetadata,
)
from epochal.checkpoint.source_logs import RateLog
from epochal.connectors.contract import Positions, SinkWriter, Source, SourceReader, WriterContext
from epochal.connectors.file.file_source import FileSource
from epochal.connectors.rate import RateSource
from epochal.connectors.registry import open_sink, open_source
from epochal.files.local import LocalFiles

ROWS_PER_SECOND = 7
QUERY_ID = "5d2c4f50-6c5f-4a0c-8a1e-2f1c0d6b9e77"


class Turns:
    """A checkpoint and an output that change hands."""

    def __init__(self, tmp: Path, form: str, options: dict[str, str], schema: Any) -> None:
        self.checkpoint, self.out = tmp / "check point", tmp / "out%put"
        self._form, self._options, self._schema = form, options, schema
        self._sink_options = {"path": str(self.out)}

    def spark_runs(self, spark: SparkSession, ddl: str | None = None) -> None:
        """What Spark finds, in micro-batches."""
        reader = spark.readStream.format(self._form).options(**self._options)
        stream = (reader.schema(ddl) if ddl else reader).load()
        query = (
            stream.writeStream.format("parquet")
            .option("checkpointLocation", str(self.checkpoint))
            .trigger(availableNow=True)
            .start(str(self.out))
        )
        try:
            assert query.awaitTermination(60)
        finally:
            query.stop()

    def open_source(self) -> Source:
        files = LocalFiles(self.checkpoint)
        return open_source(self._form, self._options, self._schema, files, 0, parallelism=2)

    def we_run(self, source: Source, start: Positions, end: Positions) -> Positions:
        """One epoch to these positions, and the boundary after them."""
        files = LocalFiles(self.checkpoint)
        offsets, commits = OffsetLog(files.at("offsets")), CommitLog(files.at("commits"))
        last = commits.latest_batch_id()
        epoch = 0 if last is None else last + 1
        sink = open_sink(
            "parquet", self._sink_options, source.schema, checkpoint=files, query_id=QUERY_ID
        )
        sink.fence(epoch + 1)
        messages = []
        positions = dict(start)
        for task, partition in enumerate(start):
            context = WriterContext(task, epoch + 1, "run", source.schema, epoch)
            with (
                closing(source.readers.open({partition: start[partition]})) as reader,
                closing(sink.writers.open(context)) as writer,
            ):
                reader.limit({partition: end[partition]})
                eventually(partial(copied, reader, writer, {partition: end[partition]}))
                positions.update(reader.positions())
                messages.append(writer.cut(epoch)())
        entry = OffsetEntry(1, (source.offset(positions),), timestamp_ms=1_700_000_000_000)
        assert offsets.add(epoch, entry)
        sink.commit(epoch, messages)
        assert commits.add(epoch, CommitEntry())
        return positions

    def start(self, source: Source) -> Positions:
        found = OffsetLog(LocalFiles(self.checkpoint).at("offsets"), read_only=True).get_latest()
        if found is None:
            return source.initial()
        (offset,) = found[1].offsets
        assert isinstance(offset, str)
        return source.resume(offset)


def copied(reader: SourceReader, writer: SinkWriter, end: Positions) -> bool:
    """Write what the reader has now; whether it has reached the end."""
    while dict(reader.positions()) != dict(end) and (batch := reader.read(5)) is not None:
        writer.write(batch)
    return dict(reader.positions()) == dict(end)


def written(spark: SparkSession, turns: Turns, *columns: str) -> list[tuple[Any, ...]]:
    rows = spark.read.parquet(str(turns.out)).selectExpr(*columns).collect()
    return sorted(tuple(row) for row in rows)


def wait_past(created_ms: int, seconds: float) -> None:
    """The rate source is about the clock: let it pass."""
    eventually(lambda: time.time() * 1000 >= created_ms + seconds * 1000)


def test_a_rate_checkpoint_goes_from_spark_to_us_and_back_without_losing_or_repeating(
    spark: SparkSession, tmp_path: Path
) -> None:
    options = {"rowsPerSecond": str(ROWS_PER_SECOND), "numPartitions": "3"}
    turns = Turns(tmp_path, "rate", options, None)
    turns.spark_runs(spark)
    created_ms = RateLog(str(turns.checkpoint / "sources" / "0"), read_only=True).get(0)
    assert created_ms is not None
    wait_past(created_ms, 2.2)
    turns.spark_runs(spark)
    seconds = []
    for _ in range(2):
        with closing(turns.open_source()) as source:
            start = turns.start(source)
            latest = source.latest()
            assert latest is not None
            turns.we_run(source, start, source.boundary(latest))
            seconds.append(int(source.offset(source.boundary(latest))))
        wait_past(created_ms, seconds[-1] + 1)
        turns.spark_runs(spark)
    rows = written(spark, turns, "value", "unix_micros(timestamp)")
    assert [value for value, _ in rows] == list(range(len(rows)))
    assert len(rows) >= seconds[-1] * ROWS_PER_SECOND
    with closing(turns.open_source()) as source:
        assert isinstance(source, RateSource)
        stamps = source.readers.schedule.stamps_ms(range(len(rows))) * 1000
    assert [stamp for _, stamp in rows] == stamps.tolist()


def rows_of_spark(
    spark: SparkSession, checkpoint: Path, rate: int, ramp: int, start: int, end: int
) -> list[tuple[int, int]]:
    """(value, milliseconds) of a batch of Spark's own rate stream, asked in its JVM."""
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    streaming = jvm.org.apache.spark.sql.execution.streaming
    options = jvm.org.apache.spark.sql.util.CaseInsensitiveStringMap.empty()
    stream = streaming.sources.RateStreamMicroBatchStream(rate, ramp, 2, options, str(checkpoint))
    offset = streaming.runtime.LongOffset
    found = []
    for partition in stream.planInputPartitions(offset(start), offset(end)):
        reader = stream.createReaderFactory().createReader(partition)
        while reader.next():
            row = reader.get()
            found.append((row.getLong(1), row.getLong(0) // 1000))
    return sorted(found)


@pytest.mark.parametrize(("rate", "ramp"), [(1, 0), (7, 0), (133, 0), (10, 3), (3, 5), (100, 7)])
def test_values_and_stamps_are_those_of_spark_s_rate_stream(
    spark: SparkSession, tmp_path: Path, rate: int, ramp: int
) -> None:
    log = tmp_path / "sources" / "0"
    options = {"rowsPerSecond": str(rate), "rampUpTime": f"{ramp}s", "numPartitions": "2"}
    for second in range(9):
        expected = rows_of_spark(spark, log, rate, ramp, second, second + 1)
        source = open_source("rate", options, None, LocalFiles(tmp_path), 0)
        assert isinstance(source, RateSource)
        start = source.resume(str(second))
        assert source.lag(start, source.resume(str(second + 1))) == len(expected)
        values = [value for value, _ in expected]
        stamps = source.readers.schedule.stamps_ms(values).tolist()
        assert list(zip(values, stamps, strict=True)) == expected


def test_a_file_checkpoint_goes_from_spark_to_us_and_back_without_losing_or_repeating(
    spark: SparkSession, tmp_path: Path
) -> None:
    inbox = tmp_path / "in box"
    inbox.mkdir()
    turns = Turns(tmp_path, "text", {"path": str(inbox), "maxFilesPerTrigger": "2"}, None)
    expected: list[tuple[Any, ...]] = []

    def feed(count: int) -> None:
        for _ in range(count):
            number = len(expected)
            lines = [(f"{number}-{line}",) for line in range(3)]
            (inbox / f"f é%{number}.txt").write_text("".join(f"{line}\n" for (line,) in lines))
            expected.extend(lines)

    feed(3)
    turns.spark_runs(spark)
    for _ in range(8):  # over a compaction of both logs
        feed(3)
        with closing(turns.open_source()) as source:
            assert isinstance(source, FileSource)
            start = turns.start(source)
            for _ in range(2):  # three files, two in an epoch
                start = turns.we_run(source, start, source.next_end(start, None))
            assert source.next_end(start, None) == start
        feed(3)
        turns.spark_runs(spark)
    assert written(spark, turns, "value") == sorted(expected)
    assert Checkpoint(str(turns.checkpoint)).commits.latest_batch_id() is not None


def test_spark_goes_on_with_a_checkpoint_that_we_began_before_there_was_a_file(
    spark: SparkSession, tmp_path: Path
) -> None:
    inbox = tmp_path / "inbox"
    inbox.mkdir()
    turns = Turns(tmp_path, "text", {"path": str(inbox)}, None)
    QueryMetadata(QUERY_ID).write(LocalFiles(turns.checkpoint))
    with closing(turns.open_source()) as source:
        turns.we_run(source, source.initial(), source.initial())
    (inbox / "a").write_text("a\n")
    turns.spark_runs(spark)
    assert written(spark, turns, "value") == [("a",)]


@pytest.mark.parametrize("form", ["parquet", "json", "csv", "text"])
def test_spark_reads_what_our_sink_committed_and_nothing_else(
    spark: SparkSession, tmp_path: Path, form: str
) -> None:
    schema = pa.schema([pa.field("word", pa.string())])
    sink = open_sink(
        form,
        {"path": str(tmp_path / "out")},
        schema,
        checkpoint=LocalFiles(tmp_path / "checkpoint"),
        query_id=QUERY_ID,
    )
    sink.fence(1)
    writer = sink.writers.open(WriterContext(0, 1, "run", schema))
    for epoch in range(12):
        writer.write(pa.record_batch([pa.array([f"w{epoch}", None])], schema=schema))
        message = writer.cut(epoch)()
        if epoch < 11:
            sink.commit(epoch, [message])
    writer.close()
    found = spark.read.format(form).schema("word string").load(str(tmp_path / "out")).collect()
    words = [row.word for row in found if row.word]
    assert sorted(words) == sorted(f"w{epoch}" for epoch in range(11))


NUMBERS: list[dict[str, Any]] = [
    {"n": number, "d": value, "f": value, "s": {"d": value}, "a": [value, None]}
    for number, value in enumerate([float("nan"), float("inf"), -float("inf"), 0.5, -0.0, None])
]


def test_json_has_numbers_that_are_not_finite_as_spark_writes_them(
    spark: SparkSession, tmp_path: Path
) -> None:
    frame = spark.createDataFrame(
        [tuple(row.values()) for row in NUMBERS],
        "n long, d double, f float, s struct<d: double>, a array<double>",
    )
    frame.coalesce(1).write.json(str(tmp_path / "spark"))
    schema = frame.toArrow().schema
    files = LocalFiles(tmp_path / "checkpoint")
    sink = open_sink(
        "json", {"path": str(tmp_path / "out")}, schema, checkpoint=files, query_id=QUERY_ID
    )
    sink.fence(1)
    with closing(sink.writers.open(WriterContext(0, 1, "run", schema))) as writer:
        writer.write(pa.RecordBatch.from_pylist(NUMBERS, schema=schema))
        sink.commit(0, [writer.cut(0)()])
    lines = [
        [line for path in (tmp_path / name).glob("part-*") for line in path.read_text().split()]
        for name in ("out", "spark")
    ]
    assert lines[0] == lines[1]
    found = spark.read.schema(frame.schema).json(str(tmp_path / "out")).orderBy("n").collect()
    assert repr(found) == repr(frame.orderBy("n").collect())


def test_spark_finds_the_partition_columns_of_our_sink(spark: SparkSession, tmp_path: Path) -> None:
    columns: list[tuple[str, pa.DataType]] = [
        ("n", pa.int64()),
        ("k", pa.string()),
        ("d", pa.int32()),
    ]
    schema = pa.schema(columns)
    rows: list[dict[str, Any]] = [
        {"n": 1, "k": "a/b=c", "d": 1},
        {"n": 2, "k": "é x", "d": 2},
        {"n": 3, "k": None, "d": 1},
        {"n": 4, "k": "50%", "d": None},
    ]
    sink = open_sink(
        "parquet",
        {"path": str(tmp_path / "out")},
        schema,
        partition_by=("k", "d"),
        checkpoint=LocalFiles(tmp_path / "checkpoint"),
        query_id=QUERY_ID,
    )
    sink.fence(1)
    with closing(sink.writers.open(WriterContext(0, 1, "run", schema))) as writer:
        writer.write(pa.RecordBatch.from_pylist(rows, schema=schema))
        sink.commit(0, [writer.cut(0)()])
    found = spark.read.parquet(str(tmp_path / "out")).select("n", "k", "d").collect()
    assert sorted(row.asDict() == rows[row.n - 1] for row in found) == [True] * 4


def test_we_read_what_spark_s_sink_committed(spark: SparkSession, tmp_path: Path) -> None:
    inbox = tmp_path / "inbox"
    inbox.mkdir()
    (inbox / "a").write_text("a\nb\n")
    turns = Turns(tmp_path, "text", {"path": str(inbox)}, None)
    turns.spark_runs(spark)
    (turns.out / "part-00009-stray.parquet").write_bytes(b"not of the log")
    schema = pa.schema([pa.field("value", pa.string())])
    files = LocalFiles(tmp_path / "second")
    with closing(open_source("parquet", {"path": str(turns.out)}, schema, files, 0)) as source:
        latest = source.latest()
        assert latest is not None
        with closing(source.readers.open(source.initial())) as reader:
            values: list[Any] = []
            while dict(reader.positions()) != dict(latest):
                batch = reader.read(10)
                if batch is not None:
                    values.extend(batch.column("value").to_pylist())
    assert sorted(values) == ["a", "b"]
