"""The answers of the dashboard that take long: the history of a query, and its lag in Kafka.

They are kept for a while, so that open pages do not burden a checkpoint or a broker.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from epochal.checkpoint.directory import Checkpoint
from epochal.checkpoint.layout import COMMITS
from epochal.checkpoint.metadata_log import parse_batch_id
from epochal.clock import Clock
from epochal.dashboard.batch_history import (
    KAFKA,
    KEPT_BATCHES,
    NO_BROKER,
    BatchFacts,
    EndOffset,
    StateSize,
    batches_to_measure,
    history_json,
    offset_of,
    with_lag,
)
from epochal.dashboard.browse import measure_state
from epochal.errors import EpochalError
from epochal.files import Files
from epochal.tools.inspect.epoch_overlay import view_with_epochs
from epochal.tools.inspect.listing import CheckpointListing, gather
from epochal.tools.inspect.source_listing import FILE, read_sources
from epochal.tools.inspect.view_models import offsets_of

if TYPE_CHECKING:
    from epochal.connectors.kafka.kafka_client import KafkaClient


BUDGET_SECONDS = 0.5
"""How long one call may measure state. The next call continues where it stopped."""
MAX_MEASURED = 20_000
UNREADABLE_STATE = "The state cannot be read. Checkpoint health says why."


class HistoryReader:
    """Reads the history of queries. Any number of threads may use it.

    Measuring the state after a batch reads all of it, and the result never changes. So results are
    kept, and each call adds some, until every batch that the page draws is measured.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._measured: dict[tuple[str, int, int | None], StateSize | None] = {}

    def read(self, files: Files) -> dict[str, Any]:
        """The history of a query, as its page draws it; without lag."""
        listing = gather(view_with_epochs(files).files)
        batches = _batches(listing)
        state, failed = self._state(files, batches) if listing.is_stateful else ({}, False)
        history = history_json(batches, _files_read(listing), state)
        history["stateful"] = listing.is_stateful
        history["state_note"] = UNREADABLE_STATE if failed and not state else None
        return history

    def _state(self, files: Files, batches: list[BatchFacts]) -> tuple[dict[int, StateSize], bool]:
        """The sizes that are known so far, and whether that of a batch could not be measured."""
        wanted = batches_to_measure([batch.batch_id for batch in batches if batch.committed])
        # The timestamp tells a batch from one of the same number before a rewind.
        names = {batch.batch_id: (files.url, batch.batch_id, batch.started_ms) for batch in batches}
        until = self._clock.monotonic() + BUDGET_SECONDS
        failed = False
        for batch_id in wanted:
            name = names[batch_id]
            if name in self._measured:
                continue
            try:
                state_size = StateSize(*measure_state(files, batch_id))
            except (EpochalError, OSError):
                state_size, failed = None, True  # purged or unreadable files; `verify` says which
            with self._lock:
                if len(self._measured) >= MAX_MEASURED:
                    self._measured.clear()
                if state_size is not None or batch_id != wanted[0]:
                    self._measured[name] = state_size
            if self._clock.monotonic() >= until:
                break
        sizes = {batch_id: self._measured.get(names[batch_id]) for batch_id in wanted}
        return {batch_id: size for batch_id, size in sizes.items() if size is not None}, failed


def _batches(listing: CheckpointListing) -> list[BatchFacts]:
    committed = {
        batch_id: info.modified_ms
        for info in listing.files.list(COMMITS)
        if (batch_id := parse_batch_id(info.name)) is not None
    }
    batches = []
    for batch_id, entry in sorted(listing.offsets.entries.items())[-KEPT_BATCHES:]:
        offsets = offsets_of(entry)
        named = dict(enumerate(offsets)) if isinstance(offsets, tuple) else offsets
        batches.append(
            BatchFacts(
                batch_id,
                entry.timestamp_ms or None,
                entry.watermark_ms or None,
                {str(name): offset_of(value) for name, value in named.items()},
                batch_id in committed,
                committed.get(batch_id),
            )
        )
    return batches


def _files_read(listing: CheckpointListing) -> dict[str, dict[int, int]]:
    """How many files each batch of a file source's log has, by source."""
    files_read: dict[str, dict[int, int]] = {}
    for name, source in read_sources(listing.files, listing.directories).items():
        if source.kind == FILE:
            # A compact file repeats the entries of all batches before it; each file counts once.
            files = {(e.batch_id, e.path) for log in source.log.entries.values() for e in log}
            counted = Counter(batch_id for batch_id, _ in files)
            files_read[name] = {
                batch_id: counted[batch_id] for batch_id in source.log.ids
            } | counted
    return files_read


REQUEST_SECONDS = 4.0


class LagMeter:
    """Measures the lag of Spark queries on one Kafka cluster. Any number of threads may use it.

    A checkpoint has the offsets that a query has read, but neither the brokers nor the end of the
    topics. The user names the brokers; without them the page says what to do.
    """

    def __init__(self, settings: Mapping[str, str] | None, clock: Clock) -> None:
        self._settings, self._clock = settings, clock
        self._client: KafkaClient | None = None
        self._lock = threading.Lock()

    def add_lag(self, files: Files, sources: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the sources of a query with their lag, or with the reason why it is unknown."""
        ends: dict[tuple[str, int], EndOffset] = {}
        why = None
        if any(source["kind"] == KAFKA for source in sources):
            try:
                ends, why = self._ends(files)
            except (EpochalError, OSError) as error:
                why = str(error)
        return [with_lag(source, ends, why) for source in sources]

    def _ends(self, files: Files) -> tuple[dict[tuple[str, int], EndOffset], str | None]:
        if self._settings is None:
            return {}, NO_BROKER
        from epochal.connectors.kafka.committer.lag import LagTarget, measure

        with self._lock:
            lags = measure(
                self._connect(self._settings),
                [LagTarget(Checkpoint(files), None)],
                self._clock.now_ms(),
            )
        ends = {
            (lag.topic, lag.partition): EndOffset(lag.latest, lag.seconds)
            for lag in lags
            if lag.latest is not None
        }
        return ends, None

    def _connect(self, settings: Mapping[str, str]) -> KafkaClient:
        from epochal.connectors.kafka.kafka_client import KafkaClient
        from epochal.connectors.kafka.offsets import Cluster

        if self._client is None:
            self._client = KafkaClient(Cluster.of(settings), request_seconds=REQUEST_SECONDS)
        return self._client


MIN_SECONDS = 1.0
MAX_KEPT = 64


@dataclass(slots=True)
class AnswerCache:
    """Answers of one kind, by name. Any number of threads may ask.

    The longer an answer took, the longer it is kept: only a share of the time is spent on
    computing.
    """

    clock: Clock
    share: float = 0.1
    """The share of the time to spend on computing."""
    _kept: dict[Hashable, tuple[float, dict[str, Any]]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def get(self, name: Hashable, compute: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return the kept answer of this name, or compute it if it is too old."""
        with self._lock:  # a second page waits for the answer instead of computing it too
            until, answer = self._kept.get(name, (0.0, {}))
            now = self.clock.monotonic()
            if now < until:
                return answer
            answer = compute()
            took = self.clock.monotonic() - now
            if len(self._kept) >= MAX_KEPT:
                self._kept.clear()
            self._kept[name] = (now + took + max(MIN_SECONDS, took / self.share), answer)
            return answer
