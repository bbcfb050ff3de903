"""A Delta sink in the hands of a test, with the logs that the engine would keep around it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable
from tests.contract.sinks import Logging, read_delta, written

from epochal.checkpoint.entries import OffsetEntry, OffsetLog
from epochal.connectors.contract import Sink
from epochal.connectors.registry import open_sink
from epochal.epoch.manifest import MANIFEST_KEY, Manifest, manifest_to_json
from epochal.files.local import LocalFiles

QUERY = "2f9c6d0e-5f0b-4f8f-9f1a-0c1f6f2d7a11"
COLUMNS: list[tuple[str, Any]] = [("id", pa.int64()), ("name", pa.string())]
ROWS = pa.schema(COLUMNS)


class Rig:
    """A query's checkpoint and table. Each `open` is another attempt."""

    def __init__(self, folder: Path, schema: pa.Schema = ROWS, path: str = "") -> None:
        self.checkpoint = LocalFiles(folder / "ck", durable=False)
        self.path, self.schema = path or str(folder / "table"), schema
        self.attempt = 0
        self._opened: list[Sink] = []

    def open(
        self,
        *,
        schema: pa.Schema | None = None,
        mode: str = "append",
        by: Sequence[str] = (),
        options: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> Any:
        """A new attempt's sink, with its logs; `real` is the sink itself."""
        given = {"path": self.path, **{k: str(v) for k, v in {**(options or {}), **more}.items()}}
        sink = open_sink(
            "delta",
            given,
            schema or self.schema,
            output_mode=mode,
            partition_by=by,
            checkpoint=self.checkpoint,
            query_id=QUERY,
        )
        self.attempt += 1
        self._opened.append(sink)
        sink.fence(self.attempt)
        return Logging(sink, self.checkpoint)

    def close(self) -> None:
        """Close all sinks."""
        for sink in self._opened:
            sink.close()

    def prepare(
        self,
        sink: Any,
        epoch: int,
        *tasks: Sequence[dict[str, Any]],
        attempt: int = 0,
        idle: bool = False,
    ) -> list[bytes]:
        """The messages of tasks that have written these rows, with or without input."""
        attempt = attempt or self.attempt
        return written(sink, epoch, tasks, self.schema, attempt=attempt, idle=idle)

    def decide(self, epoch: int, messages: Sequence[bytes]) -> None:
        """Log the epoch, as the driver does before it commits; then the driver dies."""
        manifest = Manifest(epoch, self.attempt, "run", (), tuple(messages), ())
        extra = {MANIFEST_KEY: manifest_to_json(manifest)}
        OffsetLog(self.checkpoint.at("offsets")).add(epoch, OffsetEntry(1, (), extra=extra))

    def write(self, sink: Any, epoch: int, *tasks: Sequence[dict[str, Any]]) -> None:
        """Prepare and commit an epoch."""
        sink.commit(epoch, self.prepare(sink, epoch, *tasks))

    def rows(self) -> list[dict[str, Any]]:
        """All rows of the table, sorted."""
        return sorted(read_delta(self.path).to_pylist(), key=lambda each: str(list(each.values())))

    def table(self) -> DeltaTable:
        return DeltaTable(self.path)

    def data_files(self) -> list[str]:
        """The names of all data files on disk."""
        return sorted(path.name for path in Path(self.path).rglob("*.parquet") if _is_data(path))


def _is_data(path: Path) -> bool:
    return "_delta_log" not in path.parts


def row(number: int, name: str | None = "a") -> dict[str, Any]:
    return {"id": number, "name": name}
