"""Spark and our connectors without an engine: what one has written, the other reads."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from epochal.connectors.contract import WriterContext
from epochal.connectors.rate import RateSource
from epochal.connectors.registry import open_sink, open_source
from epochal.files.local import LocalFiles

QUERY_ID = "5d2c4f50-6c5f-4a0c-8a1e-2f1c0d6b9e77"


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
        stamps = source.schedule.stamps_ms(values).tolist()
        assert list(zip(values, stamps, strict=True)) == expected


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
    (tmp_path / "inbox").mkdir()
    (tmp_path / "inbox" / "a").write_text("a\nb\n")
    out = tmp_path / "out%put"
    writer = spark.readStream.text(str(tmp_path / "inbox")).writeStream.format("parquet")
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    assert writer.trigger(availableNow=True).start(str(out)).awaitTermination(60)
    (out / "part-00009-stray.parquet").write_bytes(b"not of the log")
    schema = pa.schema([pa.field("value", pa.string())])
    files = LocalFiles(tmp_path / "second")
    with closing(open_source("parquet", {"path": str(out)}, schema, files, 0)) as source:
        latest = source.latest()
        assert latest is not None
        with closing(source.readers.open(source.initial())) as reader:
            values: list[Any] = []
            while dict(reader.positions()) != dict(latest):
                batch = reader.read(10)
                if batch is not None:
                    values.extend(batch.column("value").to_pylist())
    assert sorted(values) == ["a", "b"]
