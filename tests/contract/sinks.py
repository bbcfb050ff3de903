"""Worlds for the contract of sinks: how to open one, and what of it can be seen."""

from __future__ import annotations

import csv
import io
import json
import pickle
import re
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any, Protocol, cast
from urllib.parse import unquote
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from tests.contract.extending import example
from tests.iceberg_tables import Warehouse
from tests.kafka_topics import create_topic, read_topic
from tests.rigs.postgres import Postgres

from epochal.checkpoint.entries import CommitEntry, CommitLog, OffsetEntry, OffsetLog
from epochal.checkpoint.file_log import FileSinkLog
from epochal.connectors.console import ConsoleOptions, ConsoleSink
from epochal.connectors.contract import Sink, WriterContext
from epochal.connectors.file.file_formats import FileFormat
from epochal.connectors.file.file_sink import FileSink, FileSinkOptions
from epochal.connectors.foreach import ForeachSink
from epochal.connectors.memory import MemoryOutput, MemorySink
from epochal.connectors.registry import open_sink
from epochal.epoch.manifest import MANIFEST_KEY, Manifest, manifest_to_json
from epochal.files import Files
from epochal.files.local import LocalFiles

WORDS = pa.schema([pa.field("value", pa.string())])
QUERY_ID = "2f9c6d0e-5f0b-4f8f-9f1a-0c1f6f2d7a11"


class World(Protocol):
    def open(self) -> Sink:
        """The driver's side, over what the world has kept."""
        ...

    def visible(self) -> list[str]:
        """The words that can be seen, sorted."""
        ...


def written(
    sink: Sink,
    epoch: int,
    tasks: Sequence[Sequence[Mapping[str, Any]]],
    schema: pa.Schema = WORDS,
    *,
    attempt: int = 1,
    idle: bool = False,
) -> list[bytes]:
    """What tasks report that wrote these rows in one epoch, with or without input."""
    writers, found = pickle.loads(pickle.dumps(sink.writers)), []
    for task, rows in enumerate(tasks):
        with closing(writers.open(WriterContext(task, attempt, "run", schema, epoch))) as writer:
            if rows:
                writer.write(pa.RecordBatch.from_pylist([dict(row) for row in rows], schema))
            if idle:
                writer.note_idle()
            found.append(writer.cut(epoch)())
    return found


class MemoryWorld:
    def __init__(self, tmp: Path) -> None:
        self._output, self._files = MemoryOutput(), LocalFiles(tmp, durable=False)

    def open(self) -> Sink:
        return MemorySink(self._output, self._files, WORDS)

    def visible(self) -> list[str]:
        return sorted(map(str, self._output.table()["value"].to_pylist()))


class FilesWorld:
    def __init__(self, tmp: Path, form: FileFormat, partition_by: tuple[str, ...] = ()) -> None:
        self._out, self._form, self._by = tmp / "o u%t", form, partition_by

    def open(self) -> Sink:
        options = FileSinkOptions(path=str(self._out), compact_interval=3)
        return FileSink(self._form, options, WORDS, QUERY_ID, partition_by=self._by)

    def visible(self) -> list[str]:
        words: list[str] = []
        for entry in FileSinkLog(str(self._out / "_spark_metadata"), read_only=True).all_files():
            path = Path(unquote(entry.path.removeprefix("file://")))
            data = path.read_bytes()
            assert entry.size == len(data)
            words += words_in(self._form, data)
        return sorted(words)


def words_in(form: FileFormat, data: bytes) -> list[str]:
    match form:
        case FileFormat.PARQUET:
            return [str(word) for word in pq.read_table(io.BytesIO(data))["value"].to_pylist()]
        case FileFormat.JSON:
            return [json.loads(line)["value"] for line in data.splitlines()]
        case FileFormat.CSV:
            return [row[0] for row in csv.reader(io.StringIO(data.decode()))]
        case FileFormat.TEXT:
            return data.decode().splitlines()


class LettersWorld(FilesWorld):
    """Files, with dead letters in front of them. No word is bad."""

    def __init__(self, tmp: Path) -> None:
        super().__init__(tmp, FileFormat.JSON)
        self._letters, self._checkpoint = tmp / "letters", LocalFiles(tmp, durable=False)

    def open(self) -> Sink:
        options = {
            "path": str(self._out),
            "onBadRow": "deadLetter",
            "deadLetterPath": str(self._letters),
        }
        return open_sink("json", options, WORDS, checkpoint=self._checkpoint, query_id=QUERY_ID)


class ConsoleWorld:
    def __init__(self, tmp: Path) -> None:
        self._out = StringIO()

    def open(self) -> Sink:
        return ConsoleSink(ConsoleOptions(), self._out)

    def visible(self) -> list[str]:
        return sorted(set(re.findall(r"w\d+", self._out.getvalue())))


class Notes:
    """A ForeachWriter that appends to a file, as other processes could."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def process(self, row: object) -> None:
        with self._path.open("a") as out:
            out.write(f"{row.value}\n")  # type: ignore[attr-defined]


class ForeachWorld:
    def __init__(self, tmp: Path, *, by_batch: bool = False) -> None:
        self._path, self._by_batch = tmp / "seen", by_batch

    def open(self) -> Sink:
        if self._by_batch:
            return ForeachSink(partial(note, self._path), by_batch=True)
        return ForeachSink(Notes(self._path))

    def visible(self) -> list[str]:
        return sorted(set(self._path.read_text().split())) if self._path.exists() else []


class Logging:
    """A sink that compares with the logs, in an engine that logs what it commits."""

    def __init__(self, sink: Sink, checkpoint: Files) -> None:
        self._sink = self.real = sink
        self._offsets = OffsetLog(checkpoint.at("offsets"))
        self._commits = CommitLog(checkpoint.at("commits"))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sink, name)

    def commit(self, epoch: int, messages: Sequence[bytes]) -> None:
        manifest = Manifest(epoch, 1, "run", (), tuple(messages), ())
        extra = {MANIFEST_KEY: manifest_to_json(manifest)}
        self._offsets.add(epoch, OffsetEntry(1, (), extra=extra))
        self._sink.commit(epoch, messages)
        self._commits.add(epoch, CommitEntry(next_watermark_ms=0))


class KafkaWorld:
    """A topic of its own on a real broker, read as a consumer of transactions reads it."""

    def __init__(self, tmp: Path, servers: str, delivery: str) -> None:
        self._checkpoint, self._servers = LocalFiles(tmp, durable=False), servers
        self._query, self._delivery = str(uuid4()), delivery
        self._topic = f"words-{self._query}"
        create_topic(servers, self._topic, partitions=2)

    def open(self) -> Sink:
        options = {
            "kafka.bootstrap.servers": self._servers,
            "topic": self._topic,
            "delivery": self._delivery,
        }
        sink = open_sink("kafka", options, WORDS, checkpoint=self._checkpoint, query_id=self._query)
        return Logging(sink, self._checkpoint) if sink.decides else sink

    def visible(self) -> list[str]:
        found = [value.decode() for _, _, value in read_topic(self._servers, self._topic)]
        return sorted(found if self._delivery == "exactly-once" else set(found))


class PostgresWorld:
    """A table of its own on a real server, read by psql."""

    def __init__(self, tmp: Path, server: Postgres, merge_keys: str) -> None:
        self._checkpoint, self._server = LocalFiles(tmp, durable=False), server
        self._query, self._keys = str(uuid4()), merge_keys
        self._table = f"words_{uuid4().hex}"

    def open(self) -> Sink:
        options = {"url": self._server.url, "dbtable": self._table, "mergeKeys": self._keys}
        sink = open_sink(
            *("postgres", options, WORDS), checkpoint=self._checkpoint, query_id=self._query
        )
        return cast(Sink, Logging(sink, self._checkpoint))

    def visible(self) -> list[str]:
        return sorted(self._server.rows(f"SELECT value FROM {self._table}"))


class DeltaWorld:
    """A Delta table, read by another reader than the sink's own handle."""

    def __init__(self, tmp: Path, path: str = "", **options: str) -> None:
        self._checkpoint, self._query = LocalFiles(tmp / "ck", durable=False), str(uuid4())
        self._path, self._options = path or str(tmp / "o u%t"), options

    def open(self) -> Sink:
        options = {"path": self._path, **self._options}
        sink = open_sink("delta", options, WORDS, checkpoint=self._checkpoint, query_id=self._query)
        return Logging(sink, self._checkpoint)

    def visible(self) -> list[str]:
        return sorted(map(str, read_delta(self._path)["value"].to_pylist()))


def read_delta(path: str) -> pa.Table:
    """The rows of the newest version of a Delta table."""
    storage = {"allow_http": "true"} if path.startswith("s3") else None
    table = DeltaTable(path.replace("s3a:", "s3:"), storage_options=storage)
    return pa.table(table.to_pyarrow_table())


class IcebergWorld:
    """A table in a catalog of its own, read by a client that knows nothing of the sink."""

    def __init__(self, tmp: Path, **options: str) -> None:
        self._checkpoint = LocalFiles(tmp / "checkpoint", durable=False)
        self._warehouse, self._options = Warehouse(tmp), options

    def open(self) -> Sink:
        options = self._warehouse.options(**self._options)
        checkpoint = self._checkpoint
        sink = open_sink("iceberg", options, WORDS, checkpoint=checkpoint, query_id=QUERY_ID)
        return Logging(sink, checkpoint)

    def visible(self) -> list[str]:
        return sorted(str(row["value"]) for row in self._warehouse.rows())


class SqliteWorld:
    """The example of docs/extending.md."""

    def __init__(self, tmp: Path) -> None:
        self._checkpoint, self._path = LocalFiles(tmp / "ck", durable=False), tmp / "words.db"

    def open(self) -> Sink:
        options = {"path": str(self._path), "table": "words"}
        sink = open_sink(
            *(example("sink").SQLITE, options, WORDS),
            checkpoint=self._checkpoint,
            query_id=QUERY_ID,
        )
        return cast(Sink, Logging(sink, self._checkpoint))

    def visible(self) -> list[str]:
        with closing(sqlite3.connect(self._path)) as database:
            return sorted(word for (word,) in database.execute("SELECT value FROM words"))


def note(path: Path, rows: pa.RecordBatch, epoch: int) -> None:
    with path.open("a") as out:
        out.writelines(f"{word}\n" for word in rows.column("value").to_pylist())


KAFKA = {"kafka-exactly-once": "exactly-once", "kafka-at-least-once": "at-least-once"}
"""Worlds that need a broker, and their option delivery."""

POSTGRES = {"postgres": "", "postgres-merge": "value"}
"""Worlds that need a PostgreSQL server, and their option mergeKeys."""

DELTA_S3 = "delta-s3"
"""The world that needs an object store."""

WORLDS: dict[str, Callable[[Path], World]] = {
    "memory": MemoryWorld,
    "console": ConsoleWorld,
    "foreach": ForeachWorld,
    "foreach-batch": partial(ForeachWorld, by_batch=True),
    "delta": DeltaWorld,
    "delta-merge": partial(DeltaWorld, mergeKeys="value"),
    "iceberg": IcebergWorld,
    "iceberg-by-key": partial(IcebergWorld, mergeKeys="value"),
    "iceberg-partitioned": partial(IcebergWorld, partitionBy="value"),
    **{f"files-{form.value}": partial(FilesWorld, form=form) for form in FileFormat},
    "files-letters": LettersWorld,
    "sqlite": SqliteWorld,
}
EXACTLY_ONCE = [
    *(
        name
        for name in sorted(WORLDS)
        if name.startswith(("memory", "files", "delta", "iceberg", "sqlite"))
    ),
    DELTA_S3,
    "kafka-exactly-once",
    *POSTGRES,
]
