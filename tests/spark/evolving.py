"""A query over JSON files that is stopped, changed and started again, with either provider."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from epochal.cli.main import main

PROVIDERS = ("HDFSBackedStateStoreProvider", "RocksDBStateStoreProvider")
CONF = "spark.sql.streaming.stateStore.providerClass"
PACKAGE = "org.apache.spark.sql.execution.streaming.state"

Change = Callable[[DataFrame], DataFrame]


class Query:
    """A query over JSON files, run until it has read all of them."""

    def __init__(
        self,
        spark: SparkSession,
        base: Path,
        provider: str = PROVIDERS[0],
        schema: str = "k string, v int",
        mode: str = "update",
    ) -> None:
        self.spark, self.base, self.schema, self.mode = spark, base, schema, mode
        self.names = [field.split()[0] for field in schema.split(",")]
        spark.conf.set(CONF, f"{PACKAGE}.{provider}")
        self.rows: list[tuple[Any, ...]] = []

    @property
    def checkpoint(self) -> str:
        return str(self.base / "checkpoint")

    @property
    def latest(self) -> dict[Any, tuple[Any, ...]]:
        """The last row of each key, which is the first column."""
        return {row[0]: row[1:] for row in self.rows}

    def add(self, name: str, rows: Sequence[tuple[Any, ...]]) -> None:
        (self.base / "input").mkdir(parents=True, exist_ok=True)
        lines = [json.dumps(dict(zip(self.names, row, strict=True))) for row in rows]
        path = self.base / "input" / name
        path.write_text("\n".join(lines))
        os.utime(path, (1_700_000_000, 1_700_000_000))

    def run(self, change: Change) -> list[tuple[Any, ...]]:
        """Read all that is there; return the rows of this run."""
        source = self.spark.readStream.schema(self.schema).json(str(self.base / "input"))
        start = len(self.rows)

        def keep(batch: DataFrame, _: int) -> None:
            self.rows += [tuple(row) for row in batch.collect()]

        writer = change(source).writeStream.outputMode(self.mode).foreachBatch(keep)
        started = writer.option("checkpointLocation", self.checkpoint).trigger(availableNow=True)
        assert started.start().awaitTermination(300)
        return self.rows[start:]

    def edit(self, command: str, *words: str) -> None:
        line = ("state", command, self.checkpoint, *words, "--execute", "--settle-seconds", "0")
        assert main((*line, "--no-file-sink")) == 0
