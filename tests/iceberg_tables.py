"""Iceberg tables for tests: a catalog in SQLite with files on disk, and an engine in small."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.table import Table

from epochal.checkpoint.entries import CommitEntry, CommitLog, OffsetEntry, OffsetLog
from epochal.connectors.contract import Sink, WriterContext
from epochal.connectors.registry import open_sink
from epochal.epoch.manifest import MANIFEST_KEY, Manifest, manifest_of, manifest_to_json
from epochal.files.local import LocalFiles

QUERY_ID = "2f9c6d0e-5f0b-4f8f-9f1a-0c1f6f2d7a11"
_NUMBERS: list[tuple[str, Any]] = [("id", pa.int64()), ("v", pa.string())]
NUMBERS = pa.schema(_NUMBERS)


class Warehouse:
    """A catalog with its tables below one directory."""

    def __init__(self, folder: Path, settings: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        self.settings = settings or {
            "type": "sql",
            "uri": f"sqlite:///{folder}/catalog.db",
            "warehouse": f"file://{folder}/warehouse",
        }
        self._catalog: Catalog | None = None
        (folder / "warehouse").mkdir(parents=True, exist_ok=True)

    def options(self, table: str = "db.numbers", **more: str) -> dict[str, str]:
        """The options of a sink for a table."""
        catalog = {f"catalog.{key}": value for key, value in self.settings.items()}
        return {"table": table, "catalog.name": "tests", **catalog, **more}

    def catalog(self) -> Catalog:
        return load_catalog("tests", **self.settings)

    def table(self, name: str = "db.numbers") -> Table:
        if self._catalog is None:
            self._catalog = self.catalog()
        return self._catalog.load_table(name)

    def rows(self, name: str = "db.numbers", branch: str = "main") -> list[dict[str, Any]]:
        """The rows of a table, as somebody else reads them, in the order of their first column."""
        table = self.table(name)
        if branch not in table.metadata.refs:
            return []
        # With a ref, pyiceberg shows the columns that the table had at that time.
        scan = table.scan() if branch == "main" else table.scan().use_ref(branch)
        found = scan.to_arrow().to_pylist()
        return sorted(found, key=lambda row: str(next(iter(row.values()))).zfill(20))

    def data_files(self) -> list[Path]:
        """All data files on disk, also those that no snapshot names."""
        return sorted(p for p in (self.folder / "warehouse").rglob("*.parquet") if p.is_file())

    def named_files(self, name: str = "db.numbers") -> set[str]:
        """The names of the files in the newest snapshot."""
        found = self.table(name).inspect.files().column("file_path").to_pylist()
        return {str(path).rpartition("/")[2] for path in found}


class SmallEngine:
    """Runs a sink as the engine does: prepare, log, commit, log; and recovery before that."""

    def __init__(
        self,
        options: Mapping[str, str],
        checkpoint: Path,
        schema: pa.Schema = NUMBERS,
        *,
        attempt: int = 1,
        query_id: str = QUERY_ID,
        **more: Any,
    ) -> None:
        self.files = LocalFiles(checkpoint, durable=False)
        self.offsets = OffsetLog(self.files.at("offsets"))
        self.commits = CommitLog(self.files.at("commits"))
        self.schema, self.attempt = schema, attempt
        self.sink: Sink = open_sink(
            "iceberg", options, schema, checkpoint=self.files, query_id=query_id, **more
        )

    def __enter__(self) -> SmallEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self.sink.close()

    def started(self) -> SmallEngine:
        """The engine after its start, for `with`."""
        self.start()
        return self

    def start(self) -> int:
        """Fence, finish what is decided, and return the next epoch."""
        self.sink.fence(self.attempt)
        newest, committed = self.offsets.latest_batch_id(), self.commits.latest_batch_id()
        if newest is not None and newest != committed:
            entry = self.offsets.get(newest)
            assert entry is not None
            manifest = manifest_of(entry, "offsets")
            assert manifest is not None
            self.finish(newest, manifest.messages)
        return 0 if newest is None else newest + 1

    def prepare(
        self, epoch: int, rows: pa.Table, tasks: int = 1, *, idle: bool = False
    ) -> tuple[bytes, ...]:
        """Have tasks write the rows, with or without input; return their messages."""
        messages = []
        size = -(-max(rows.num_rows, 1) // tasks)
        factory = pickle.loads(pickle.dumps(self.sink.writers))
        for task in range(tasks):
            context = WriterContext(task, self.attempt, "run", self.schema, epoch)
            with closing(factory.open(context)) as writer:
                for batch in rows.slice(task * size, size).to_batches():
                    writer.write(batch)
                if idle:
                    writer.note_idle()
                messages.append(writer.cut(epoch)())
        return tuple(messages)

    def decide(self, epoch: int, messages: Sequence[bytes]) -> bool:
        manifest = Manifest(epoch, self.attempt, "run", (), tuple(messages), ())
        extra = {MANIFEST_KEY: manifest_to_json(manifest)}
        return self.offsets.add(epoch, OffsetEntry(1, (), extra=extra))

    def finish(self, epoch: int, messages: Sequence[bytes]) -> None:
        self.sink.commit(epoch, messages)
        self.commits.add(epoch, CommitEntry(next_watermark_ms=0))

    def run(
        self, epoch: int, rows: pa.Table, tasks: int = 1, *, idle: bool = False
    ) -> tuple[bytes, ...]:
        """Run an epoch from the start to the end."""
        messages = self.prepare(epoch, rows, tasks, idle=idle)
        assert self.decide(epoch, messages)
        self.finish(epoch, messages)
        return messages


def numbers(*ids: int, text: str = "") -> pa.Table:
    """Rows of NUMBERS."""
    values = [text or f"v{number}" for number in ids]
    return pa.table([pa.array(ids, pa.int64()), pa.array(values, pa.string())], schema=NUMBERS)
