"""A driver program that tests kill: running sums by key, from one Kafka topic to another.

    python -m tests.fault.kafka_sums MASTER CHECKPOINT OUT servers=… input=… output=… [OPTION=VALUE]

OUT is not used. The sink is exactly-once. On SIGTERM the program stops its query gracefully and
exits with 0. It exits with 3 if the query failed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from tests.fault.keyed_sums import run_until_told
from tests.fault.sums import ENDURING, KEYS, OUTPUT, RunningSum
from tests.spark.sessions import session

from epochal import read_stream

NUMBERS = "value long, k long"
RECORDS = "key string, value string"


def numbers(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        value = batch.column("value").cast(pa.string()).cast(pa.int64())
        key = pc.subtract(value, pc.multiply(pc.divide(value, KEYS), KEYS))
        yield pa.RecordBatch.from_arrays([value, key], names=["value", "k"])


def records(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        value, total = (batch.column(name).to_pylist() for name in ("value", "total"))
        told = pa.array([f"{v},{t}" for v, t in zip(value, total, strict=True)], pa.string())
        key = batch.column("k").cast(pa.string())
        yield pa.RecordBatch.from_arrays([key, told], names=["key", "value"])


def query_of(spark: Any, given: dict[str, str], checkpoint: str) -> Any:
    servers, source, target = (given.pop(name) for name in ("servers", "input", "output"))
    stream = (
        read_stream(spark)
        .format("kafka")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .load()
    )
    sums = stream.map_in_arrow(numbers, NUMBERS).transform_with_state(
        RunningSum(), key=["k"], output=OUTPUT
    )
    usual = {
        **ENDURING,
        "checkpointLocation": checkpoint,
        "kafka.bootstrap.servers": servers,
        "topic": target,
    }
    writer = sums.map_in_arrow(records, RECORDS).write_stream.format("kafka")
    return writer.options(**{**usual, **given}).trigger(epoch="100 milliseconds").start()


def main(master: str, checkpoint: str, out: str, *options: str) -> None:
    del out
    spark = session(master, spark__deploy__maxExecutorRetries="-1", spark__locality__wait="0s")
    given = dict(option.split("=", 1) for option in options)
    run_until_told(lambda: query_of(spark, given, checkpoint))


if __name__ == "__main__":
    main(*sys.argv[1:])
