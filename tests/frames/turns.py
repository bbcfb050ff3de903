"""Spark and Epochal take turns on one checkpoint: the queries, the providers, the runs.

A run is a script: the engine of each phase of the corpus' input. Where the engine changes, the
query is stopped and the other engine starts on the same checkpoint.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from tests.corpus.inputs import PHASES, Streams, prepare
from tests.corpus.queries import QUERIES, Query, Views
from tests.corpus.running import Output, frame_of, views

import epochal
from epochal.checkpoint import OffsetLog
from epochal.checkpoint.restart import ROCKSDB_PROVIDER_CLASS, STATE_FORMAT
from epochal.connectors.file.file_reader import FilePosition, parse_position
from epochal.epoch.manifest import manifest_of
from epochal.files import open_files
from epochal.tools.edit.rewind import plan_publish
from epochal.tools.edit.survey import survey

SPARK, OURS = "spark", "ours"
ON_DISK = "ours-on-disk"
"""Epochal with its state on disk."""

STATE = "spark.sql.streaming.stateStore."
CHANGELOGS = {f"{STATE}rocksdb.changelogCheckpointing.enabled": "true"}
ROCKSDB = {f"{STATE}providerClass": ROCKSDB_PROVIDER_CLASS}
PROVIDERS: Mapping[str, Mapping[str, str]] = {
    "hdfs": {},
    "rocksdb": ROCKSDB,
    "changelogs": {**ROCKSDB, **CHANGELOGS},
    "ids": {**ROCKSDB, STATE_FORMAT: "2"},
    "ids-changelogs": {**ROCKSDB, **CHANGELOGS, STATE_FORMAT: "2"},
}
"""The settings of each provider, beside those of the session."""


class Tens(StatefulProcessor):  # type: ignore[misc]
    """Counts the rows of every ten seconds when a timer says that they are over.

    It does not matter in which batch a row arrives, as long as it is not late.
    """

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.waiting = handle.getValueState("waiting", "rows string")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        found = [(round(row.at.timestamp() * 1000), row.id) for row in rows if row.at is not None]
        self._keep(self._waiting() + found)
        for end in {at // 10_000 * 10_000 + 10_000 for at, _ in found}:
            self.handle.registerTimer(end)
        yield from ()

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Row]:
        end, waiting = expiredTimerInfo.getExpiryTimeInMs(), self._waiting()
        over = [number for at, number in waiting if at < end]
        self._keep([(at, number) for at, number in waiting if at >= end])
        yield Row(user=key[0], until=end, rows=len(over), ids=sum(over))

    def _waiting(self) -> list[tuple[int, int]]:
        found = self.waiting.get()
        return [] if found is None else [(at, number) for at, number in json.loads(found[0])]

    def _keep(self, rows: list[tuple[int, int]]) -> None:
        if rows:
            self.waiting.update((json.dumps(sorted(rows)),))
        else:
            self.waiting.clear()

    def close(self) -> None:
        pass


def tens(found: Views) -> DataFrame:
    """The query of the processor."""
    rows = found["events_w"].select("user", "at", "id").groupBy("user")
    output = "user string, until long, rows long, ids long"
    return rows.transformWithState(Tens(), output, "Append", "EventTime")


TRANSFORM = Query("transformWithState", tens, stateful=True)
NAMES = (
    "expressions over aggregates, by user",
    "filter, by window",
    "collect_set, by user",
    "sliding, append",
    "session, append",
    "dropDuplicates by key",
    "dropDuplicates with event time",
    "dropDuplicates within watermark",
    "inner join with time bounds",
    "left join with time bounds",
    "full join with time bounds",
    "semi join with time bounds",
    "dropDuplicates then aggregate",
    "join then aggregate",
    "aggregate of aggregate",
    "limit",
    "count of all rows",
)
BY_NAME = {query.name: query for query in QUERIES} | {TRANSFORM.name: TRANSFORM}
TAKEN_OVER = [*(BY_NAME[name] for name in NAMES), TRANSFORM]


def random_script(first: str, seed: object) -> tuple[str, ...]:
    """An engine for each phase: both have at least two turns, which end at random."""
    rng, other = Random(f"turns {seed}"), {SPARK: OURS, OURS: SPARK}
    switches, engine = sorted(rng.sample(range(1, PHASES), rng.choice((3, 4)))), first
    script = []
    for phase in range(PHASES):
        engine = other[engine] if phase in switches else engine
        script.append(engine)
    return tuple(script)


@dataclass(slots=True)
class Table:
    """A query, its input and its checkpoint, at which engines take their turns."""

    spark: SparkSession
    query: Query
    home: Path
    files: bool = False
    """Whether the output goes to a sink of parquet files instead of a function."""
    output: Output = field(default_factory=Output)
    streams: Streams = field(init=False)

    def __post_init__(self) -> None:
        self.streams = prepare(self.home)

    @property
    def checkpoint(self) -> Path:
        return self.home / "checkpoint"

    @property
    def out(self) -> Path:
        return self.home / "out"

    def start(self, engine: str) -> Any:
        return start(self.spark, self.query, self.home, engine, None if self.files else self.output)

    def play(self, script: tuple[str, ...], phase: int = 0) -> None:
        """Let these engines process the phases from `phase` on."""
        running, at_work = None, ""
        try:
            for number, engine in enumerate(script, phase):
                if running is None or engine != at_work:
                    if running is not None:
                        running.stop()
                    running, at_work = self.start(engine), engine
                self.streams.add(number)
                running.processAllAvailable()
        finally:
            if running is not None:
                running.stop()

    def settle(self, engine: str) -> None:
        """Let an engine process what is there, and nothing more."""
        running = self.start(engine)
        try:
            running.processAllAvailable()
        finally:
            running.stop()

    def rows(self) -> list[Any]:
        """The whole output."""
        if not self.files:
            return self.output.result(self.query)
        found = Output()
        found.take(self.spark.read.parquet(str(self.out)), 0)
        return found.result(self.query)


def start(spark: SparkSession, query: Query, home: Path, engine: str, output: Output | None) -> Any:
    """Start a query; without an `output` it writes parquet files."""
    frame = frame_of(spark, query, views(spark, Streams(home / "events", home / "payments")))
    writer: Any = frame.writeStream if engine == SPARK else epochal.write_stream(frame)
    writer = writer.outputMode(query.mode).option("checkpointLocation", str(home / "checkpoint"))
    if engine == ON_DISK:
        writer = writer.option("stateMemory", "32m").option("stateLocalDir", str(home / "local"))
    if output is None:
        return writer.format("parquet").start(str(home / "out"))
    return writer.foreachBatch(output.take).start()


def ends_exactly(checkpoint: Path) -> bool:
    """Whether Spark's offsets say exactly where the last two epochs ended.

    An epoch of ours may end within a batch of the file source's log; then only we can go on.
    """
    log = OffsetLog(str(checkpoint / "offsets"), read_only=True)
    for number in log.batch_ids()[-2:]:
        entry = log.get(number)
        manifest = None if entry is None else manifest_of(entry, "offsets", number)
        for positions in () if manifest is None else manifest.positions:
            ends = [parse_position(text)[0] for text in positions.values()]
            if any(each != FilePosition(ends[0].batch, 0, 0) for each in ends):
                return False
    return True


def publish(checkpoint: Path) -> None:
    """Do what `epochal checkpoint publish` does, without a wait for the lease of a killed run."""
    files = open_files(str(checkpoint))
    for change in plan_publish(survey(files)).changes:
        assert isinstance(change.after, bytes)
        files.replace(change.path, change.after)


def session_of(spark: SparkSession, provider: str) -> SparkSession:
    """A session whose new queries keep their state with a provider."""
    found = spark.newSession()
    for key, value in PROVIDERS[provider].items():
        found.conf.set(key, value)
    return found
