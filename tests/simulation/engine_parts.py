"""What surrounds the engine in a simulated world: a source that counts, a sink that stages."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import pyarrow as pa

from epochal.connectors.contract import Positions, Prepare, WriterContext
from epochal.continuous.operators.contract import Row
from epochal.errors import EpochError
from epochal.files import Files
from epochal.testing.files import MemoryFiles

OUTPUT, STAGED, FENCE = "out", "staged", "fence"
COMMITS = "checkpoint/commits"


@dataclass(slots=True)
class WorldSource:
    """The driver's side of the events; its offsets name whole steps only."""

    acknowledges_in_tasks = False

    partitions: int
    rows: int
    step: int
    truth: MemoryFiles
    wrong: list[str]
    first: int = 0
    """The number of its first partition: those of two sources differ."""

    def initial(self) -> Positions:
        return {str(self.first + partition): "0" for partition in range(self.partitions)}

    def resume(self, offset: str) -> Positions:
        found: dict[str, str] = json.loads(offset)
        return found

    def offset(self, positions: Positions) -> str:
        return json.dumps({p: str(self._whole(int(at))) for p, at in positions.items()})

    def boundary(self, positions: Positions) -> Positions:
        return {p: str(self._next(int(at))) for p, at in positions.items()}

    def acknowledge(self, epoch: int, positions: Positions) -> None:
        for path in (f"{COMMITS}/{epoch}", f"{OUTPUT}/{epoch}"):
            if self.truth.info(path) is None:
                self.wrong.append(f"epoch {epoch} was acknowledged without {path}")

    def _whole(self, at: int) -> int:
        return at if at == self.rows else at // self.step * self.step

    def _next(self, at: int) -> int:
        return min(-(-at // self.step) * self.step, self.rows)


@dataclass(slots=True)
class WorldSink:
    """Output is a file per epoch that names staged ones: it is there, or it is not."""

    files: Files
    truth: MemoryFiles
    decides: bool
    attempt: int = -1

    def fence(self, attempt: int) -> None:
        self.attempt = attempt
        if attempt > self._fenced():
            self.truth.replace(FENCE, str(attempt).encode())

    def decided(self, epoch: int) -> bool:
        return self.files.info(f"{OUTPUT}/{epoch}") is not None

    def commit(self, epoch: int, messages: Sequence[bytes]) -> None:
        data = b"\n".join(messages)
        if not self.decides:
            with suppress(FileExistsError):
                self.files.create(f"{OUTPUT}/{epoch}", data)
            return
        self.files.info(f"{OUTPUT}/{epoch}")  # a moment at which the process may stop
        # What follows is one act of the sink itself: nobody comes between.
        if self._fenced() > self.attempt:
            raise EpochError(f"attempt {self.attempt} was fenced by attempt {self._fenced()}")
        if self.truth.info(f"{OUTPUT}/{epoch}") is None:
            self.truth.create(f"{OUTPUT}/{epoch}", data)

    def _fenced(self) -> int:
        return -1 if self.truth.info(FENCE) is None else int(self.truth.read(FENCE))


@dataclass(slots=True)
class StagingWriter:
    files: Files
    context: WriterContext
    batches: list[pa.RecordBatch] = field(default_factory=list)

    def open(self, context: WriterContext) -> StagingWriter:
        return StagingWriter(self.files, context)

    def write(self, batch: pa.RecordBatch) -> None:
        self.batches.append(batch)

    def cut(self, epoch: int) -> Prepare:
        batches, self.batches = self.batches, []
        name = f"{epoch}-{self.context.task}-a{self.context.attempt}"

        def prepare() -> bytes:
            rows = [
                row for batch in batches for row in zip(*batch.to_pydict().values(), strict=True)
            ]
            self.files.replace(f"{STAGED}/{name}", json.dumps(rows).encode())
            return name.encode()

        return prepare

    def close(self) -> None:
        pass


def visible(truth: MemoryFiles) -> dict[int, list[Row]]:
    """The rows that the sink shows, by epoch."""
    found: dict[int, list[Row]] = {}
    for info in truth.list(OUTPUT):
        names = truth.read(f"{OUTPUT}/{info.name}").decode().split("\n")
        found[int(info.name)] = [
            tuple(row)
            for name in names
            if name
            for row in json.loads(truth.read(f"{STAGED}/{name}"))
        ]
    return dict(sorted(found.items()))
