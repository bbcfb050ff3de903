"""Sends the events of a run to its outputs: the dashboard's journal, metrics and traces.

The committing and the acknowledging threads only append to a queue. The thread that watches the run
does the rest, a few times a second. An output that fails is dropped with a warning: it must not end
the query.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from epochal.clock import Clock
from epochal.epoch.committed import CommittedEpoch
from epochal.errors import OptionError
from epochal.metrics.otel_spans import SpanWriter, find_tracer
from epochal.metrics.prometheus import serve
from epochal.metrics.query_metrics import QueryMetrics
from epochal.metrics.run_journal import JournalWriter, runs_directory
from epochal.metrics.run_records import (
    EpochDone,
    Progressed,
    Record,
    RecordOutput,
    RunEnded,
    RunStarted,
    StatusChanged,
)
from epochal.version import __version__

if TYPE_CHECKING:
    from epochal.continuous.run.open_query import Opened

logger = logging.getLogger(__name__)

MAX_WAITING_EPOCHS = 10_000
ACK_SECONDS = 1.0
"""How long an epoch's record waits for the duration of its acknowledgement."""


class Telemetry:
    """Collects the events of a run and writes them to its outputs."""

    def __init__(
        self,
        outputs: Sequence[RecordOutput],
        clock: Clock,
        on_close: Callable[[], None] = lambda: None,
    ) -> None:
        self._outputs, self._clock, self._on_close = list(outputs), clock, on_close
        self._epochs: deque[tuple[CommittedEpoch, int]] = deque(maxlen=MAX_WAITING_EPOCHS)
        self._acks: deque[tuple[int, float]] = deque(maxlen=MAX_WAITING_EPOCHS)
        self._acked: dict[int, float] = {}
        self._status: StatusChanged | None = None
        self._lock = threading.Lock()
        """The watching thread may still be writing when the run's thread calls `close`."""
        self._closed = False

    def begin(self, first: RunStarted) -> None:
        """Write the first record. The journal has it already."""
        self._write([first])

    def committed(self, epoch: CommittedEpoch, attempt: int) -> None:
        """Add a committed epoch; called by the committing thread."""
        self._epochs.append((epoch, attempt))

    def acknowledged(self, epoch: int, seconds: float) -> None:
        """Add the duration of an acknowledgement; called by the acknowledging thread."""
        self._acks.append((epoch, seconds))

    def tick(self, status: StatusChanged, report: dict[str, Any] | None) -> None:
        """Write what has happened since the last call; called by the watching thread."""
        with self._lock:
            if self._closed or not self._outputs:
                self._epochs.clear()
                self._acks.clear()
                return
            records: list[Record] = list(self._finished())
            if report is not None:
                records.append(Progressed(status.at_ms, report))
            before = self._status
            changed = {"at_ms": status.at_ms, "epoch": status.epoch}
            if before is None or msgspec.structs.replace(before, **changed) != status:
                self._status = status
                records.append(status)
            if records:
                self._write(records)

    def close(self, error: str | None) -> None:
        """Write the last records and close the outputs."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            records: list[Record] = list(self._finished(everything=True))
            self._write([*records, RunEnded(self._clock.now_ms(), error)])
            for output in self._outputs:
                output.close()
        self._on_close()

    def _finished(self, *, everything: bool = False) -> list[EpochDone]:
        while self._acks:
            epoch, seconds = self._acks.popleft()
            self._acked[epoch] = 1000 * seconds
        oldest_ms = self._clock.now_ms() - round(1000 * ACK_SECONDS)
        records: list[EpochDone] = []
        while self._epochs:
            epoch_done, attempt = self._epochs[0]
            ack_ms = self._acked.get(epoch_done.epoch)
            if ack_ms is None and epoch_done.committed_ms > oldest_ms and not everything:
                break
            self._epochs.popleft()
            records.append(record_of(epoch_done, attempt, ack_ms))
        if records:
            newest = records[-1].epoch
            self._acked = {later: ms for later, ms in self._acked.items() if later > newest}
        return records

    def _write(self, records: list[Record]) -> None:
        for output in list(self._outputs):
            try:
                output.write(records)
            except Exception as error:  # noqa: BLE001  an output must not end the query
                logger.warning("%s failed and is closed: %s", type(output).__name__, error)
                self._outputs.remove(output)


def record_of(epoch: CommittedEpoch, attempt: int, ack_ms: float | None) -> EpochDone:
    """Return the record of an epoch: what has the same name is the same."""
    names = set(EpochDone.__struct_fields__) - {"ack_ms", "attempt"}
    figures: dict[str, Any] = {name: getattr(epoch, name) for name in names}
    rounded_ms = None if ack_ms is None else round(ack_ms, 3)
    return EpochDone(**figures, ack_ms=rounded_ms, attempt=attempt)


def open_telemetry(opened: Opened, clock: Clock) -> Telemetry:
    """Open the outputs that the options ask for; OptionError if metrics cannot be served."""
    options = opened.options
    if not options.telemetry and options.metrics_port is None:
        return Telemetry([], clock)
    note = opened.note
    first = RunStarted(
        query_id=opened.query_id,
        run_id=opened.run_id,
        name=note.name,
        checkpoint=opened.files.url,
        sources=note.sources,
        sink=note.sink,
        started_ms=clock.now_ms(),
        pid=os.getpid(),
        host=socket.gethostname(),
        operators=tuple(stage.stateful.name for stage in opened.plan.stages),
        version=__version__,
    )
    outputs: list[RecordOutput] = []
    on_close: Callable[[], None] = lambda: None  # noqa: E731
    if options.metrics_port is not None:
        metrics = QueryMetrics()
        on_close = serve(metrics.collect, options.metrics_port, options.metrics_host)
        outputs.append(metrics)
    if options.telemetry:
        location = options.telemetry_location
        directory = Path(location) if location else runs_directory()
        try:
            outputs.append(JournalWriter(directory, first))
        except (OSError, OptionError) as error:
            logger.warning("the dashboard cannot show query %s: %s", opened.query_id, error)
        tracer = find_tracer()
        if tracer is not None:
            outputs.append(SpanWriter(tracer))
    telemetry = Telemetry(outputs, clock, on_close)
    telemetry.begin(first)
    return telemetry
