"""Runs a query of the corpus on Spark or on Epochal, by the same calls, and collects its output."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.nexmark.texts import NexmarkQuery
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from tests.corpus.inputs import DELAY_SECONDS, EVENTS, PAYMENTS, PHASES, USERS, Streams, prepare
from tests.corpus.queries import APPEND, COMPLETE, UPDATE, Query, Views
from tests.frames.streams_of_words import plain

Row = tuple[Any, ...]


@dataclass(slots=True)
class Output:
    """The rows of each batch or epoch, in order."""

    batches: list[list[Row]] = field(default_factory=list)

    def take(self, frame: DataFrame, batch_id: int) -> None:
        """The function for foreachBatch."""
        rows = frame.toArrow().to_pylist()
        self.batches.append([tuple(plain(value) for value in row.values()) for row in rows])

    def result(self, query: Query | NexmarkQuery) -> list[Row]:
        """What must be equal in all engines: see the module of the corpus' tests."""
        if query.mode == COMPLETE:
            shown = self.batches[-1] if self.batches else []
        elif query.mode == UPDATE:
            latest: dict[str, Row] = {}
            for row in (row for batch in self.batches for row in batch):
                latest[repr(row[: query.keys])] = row
            shown = list(latest.values())
        else:
            shown = [row for batch in self.batches for row in batch]
        return sorted(shown, key=repr)


def views(spark: SparkSession, streams: Streams) -> Views:
    """The views that queries use, as temporary views and by name."""
    delay = f"{DELAY_SECONDS} seconds"
    events = spark.readStream.schema(from_arrow_schema(EVENTS)).parquet(str(streams.events))
    payments = spark.readStream.schema(from_arrow_schema(PAYMENTS)).parquet(str(streams.payments))
    found = {
        "events": events,
        "payments": payments,
        "events_w": events.withWatermark("at", delay),
        "payments_w": payments.withWatermark("paid_at", delay),
        "users": spark.createDataFrame(USERS),
    }
    for name, frame in found.items():
        frame.createOrReplaceTempView(name)
    return found


def frame_of(spark: SparkSession, query: Query, found: Views) -> DataFrame:
    """The DataFrame of a query."""
    return spark.sql(query.build) if isinstance(query.build, str) else query.build(found)


def run(
    spark: SparkSession, query: Query, home: Path, write: Callable[[DataFrame], Any]
) -> tuple[Output, Path]:
    """Run a query over all phases; return its output and its checkpoint.

    If it has no state, it does not matter which batch a row is in, and all phases come at once.
    """
    streams, output, checkpoint = prepare(home), Output(), home / "checkpoint"
    frame = frame_of(spark, query, views(spark, streams))
    running = (
        write(frame)
        .foreachBatch(output.take)
        .outputMode(query.mode)
        .option("checkpointLocation", str(checkpoint))
        .start()
    )
    try:
        for phase in range(PHASES):
            streams.add(phase)
            if query.stateful or query.mode != APPEND or phase == PHASES - 1:
                running.processAllAvailable()
    finally:
        running.stop()
    return output, checkpoint
