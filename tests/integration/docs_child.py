"""Runs every code block of the given pages in order, as a reader would type them, in one process.

    python -m tests.integration.docs_child < WORLD.json

It prints one line of JSON per page: how many blocks and commands ran, and what failed. Each page
has its own directory, namespace and checkpoint, which its blocks share.

Note: pages name example brokers, topics and paths. These are replaced in the text by those of this
run; everything else runs as written.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from tests.listening import addresses, family, name_of

import epochal

SERVING = ("dashboard", "pubsub serve", "demo", "run", "--follow", "--watch", "--metrics-port")
"""Commands that run until they are stopped. Each is tested elsewhere."""
BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```", re.M | re.S)


@dataclass(frozen=True, slots=True)
class World:
    """What replaces the names in the pages."""

    servers: str
    postgres: str
    pubsub: str
    topic: str
    jars: str
    checkpoint: str
    """An intact checkpoint with state and a file sink, at batch `newest`."""
    output: str
    newest: int
    newest_ms: int
    metrics_port: int
    directory: str


def session(world: World) -> SparkSession:
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.jars", world.jars)
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark


class PageRun:
    """One page, and the environment of its blocks."""

    def __init__(self, page: Path, world: World, spark: SparkSession) -> None:
        self._page, self._world = page, world
        self._home = Path(world.directory, page.stem)
        self._home.mkdir(parents=True)
        self._spark = spark
        self._names: dict[str, Any] = {"__name__": "__main__", "spark": spark}
        self.blocks = self.commands = 0
        shutil.copytree(world.checkpoint, self._home / "sound")
        shutil.copytree(world.output, self._home / "output")
        write_inputs(self._home)
        if page.name in GIVEN:
            self._names |= GIVEN[page.name](self._home, spark)

    def run(self) -> None:
        for kind, text in BLOCK.findall(self._page.read_text()):
            if kind == "python":
                exec(compile(self._staged(text), str(self._page), "exec"), self._names)
                self.blocks += 1
            else:
                for line in text.replace("\\\n", " ").splitlines():
                    self._command(line)

    def end(self) -> None:
        """Stop the queries that the page left running."""
        for query in epochal.streams(self._spark).active:
            query.stop()
        for ours in self._spark.streams.active:
            ours.stop()

    def _staged(self, text: str) -> str:
        world = self._world
        for name, stands_for in (
            ("s3://bucket/queries/orders/checkpoint", f"{self._home}/sound"),
            ("s3://bucket/new/place", f"{self._home}/copied"),
            ("/data/", f"{self._home}/"),
            ("/tmp/checkpoint", f"{self._home}/checkpoint"),
            ("broker:9092", world.servers),
            ("postgresql://app@db:5432/sales", world.postgres),
            ("HOST:9092", world.servers),
            ('"subscribe", "orders"', f'"subscribe", "{world.topic}"'),
            ('"topic", "totals"', f'"topic", "{world.topic}-totals"'),
            ("orders:3:1200", f"{world.topic}:3:100"),
            ("orders-query", f"{world.topic}-query"),
            ("9464", str(world.metrics_port)),
        ):
            text = text.replace(name, stands_for)
        return text

    def _command(self, line: str) -> None:
        words = shlex.split(self._staged(line), comments=True)
        shown = " ".join(words)
        if words[:1] != ["epochal"] or any(f" {each}" in shown for each in SERVING):
            return
        wanted = self._kafka_checkpoint() if self._is_about_kafka(words) else self._home / "sound"
        stands_for = {
            "CHECKPOINT": str(wanted),
            "CHECKPOINT/offsets": str(wanted / "offsets"),
            "OUTPUT": str(self._home / "output"),
            "COPY": str(self._home / "copy"),
            "41": str(self._world.newest - 2),
            "2026-03-01T06:00:00": f"@{self._world.newest_ms}",
        }
        words = [stands_for.get(word, word) for word in words]
        self._epochal([_moment(word) for word in words[1:]])
        self.commands += 1

    def _epochal(self, words: list[str]) -> None:
        command = [sys.executable, "-m", "epochal.cli.main", *words]
        run = subprocess.run(command, capture_output=True, text=True)
        if run.returncode:
            said = f"{run.stdout}{run.stderr}"
            raise SystemExit(f"epochal {' '.join(words)} exited with {run.returncode}: {said}")

    def _is_about_kafka(self, words: list[str]) -> bool:
        return "set-offsets" in words or words[1:2] == ["kafka"]

    def _kafka_checkpoint(self) -> Path:
        """The checkpoint of a query that has read the whole topic; created on first use."""
        place = self._home / "kafka-checkpoint"
        if not place.exists():
            query = (
                self._spark.readStream.format("kafka")
                .option("kafka.bootstrap.servers", self._world.servers)
                .option("subscribe", self._world.topic)
                .option("startingOffsets", "earliest")
                .load()
                .writeStream.format("noop")
                .option("checkpointLocation", str(place))
                .trigger(availableNow=True)
                .start()
            )
            query.awaitTermination()
        return place


def _moment(word: str) -> str:
    """Return a time as `@MILLISECONDS`, which the commands accept."""
    if not re.fullmatch(r"@\d+", word):
        return word
    from datetime import UTC, datetime

    return datetime.fromtimestamp(int(word[1:]) / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")


def write_inputs(home: Path) -> None:
    """Write the files that pages read."""
    (home / "orders").mkdir()
    (home / "words").mkdir()
    orders = [
        {"user": f"u{n % 5}", "amount": n, "at": f"2026-05-01T10:{n % 60:02}:00Z"}
        for n in range(300)
    ]
    (home / "orders" / "0.json").write_text("\n".join(map(json.dumps, orders)))
    words = [{"id": n, "word": f"word{n}"} for n in range(100)]
    (home / "words" / "0.json").write_text("\n".join(map(json.dumps, words)))


def _metrics(home: Path, spark: SparkSession) -> dict[str, Any]:
    return {"stream": epochal.read_stream(spark).format("rate").load()}


def _operating(home: Path, spark: SparkSession) -> dict[str, Any]:
    letter = {"query": "q", "epoch": 4, "task": 0, "reason": "no day", "row": {"id": 1}}
    (home / "dead-letters").mkdir()
    (home / "dead-letters" / "letters-q-4-0.json").write_text(f"{json.dumps(letter)}\n")
    moment = pa.timestamp("us", "UTC")
    window = pa.array([{"start": 0, "end": 10}], pa.struct([("start", moment), ("end", moment)]))
    largest = pa.table({"window": window, "k": ["k0"], "largest": [5]})
    pq.write_table(largest, str(home / "largest.parquet"))
    page = Path(__file__).parents[2] / "docs" / "operating.md"
    [functions] = [text for _, text in BLOCK.findall(page.read_text()) if "def letter" in text]
    (home / "keys.py").write_text(functions)
    return {}


def _upgrading(home: Path, spark: SparkSession) -> dict[str, Any]:
    df = spark.readStream.schema("user string, amount long").json(str(home / "orders"))
    df = df.groupBy("user").sum("amount")
    query = (
        df.writeStream.outputMode("update")
        .format("noop")
        .option("checkpointLocation", str(home / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return {"epochal": epochal, "df": df}


GIVEN: dict[str, Callable[[Path, SparkSession], dict[str, Any]]] = {
    "metrics.md": _metrics,
    "operating.md": _operating,
    "upgrading.md": _upgrading,
}
"""Names that a page expects its reader to define."""


def main() -> None:
    given = json.load(sys.stdin)
    pages = [Path(page) for page in given.pop("pages")]
    world = World(**given)
    os.environ["PUBSUB_EMULATOR_HOST"] = world.pubsub
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = session(world)
    for page in pages:
        began = time.monotonic()
        run, error = PageRun(page, world, spark), None
        try:
            run.run()
        except (Exception, SystemExit):  # noqa: BLE001, a page's code may raise anything
            error = traceback.format_exc()
        finally:
            # The JVM's open files are Spark's responsibility, not ours.
            ours = {pid for pid in family(os.getpid()) if name_of(pid) != "java"}
            listening = sorted(addresses(ours))
            run.end()
        said = {"page": page.name, "blocks": run.blocks, "commands": run.commands, "error": error}
        said |= {"listening": listening, "seconds": round(time.monotonic() - began, 1)}
        sys.stdout.write(f"PAGE {json.dumps(said)}\n")
        sys.stdout.flush()
    spark.stop()


if __name__ == "__main__":
    main()
