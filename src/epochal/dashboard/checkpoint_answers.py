"""What the page asks of a checkpoint: its history, its lag in Kafka, and offsets and state by page.

Nothing is ever written. Answers that take long are kept for a while, so that open pages do not
burden a checkpoint or a broker. A request names a store or a variable. The name is first looked up
in what the checkpoint lists, and only then used to open something.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from itertools import islice
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
from epochal.errors import EpochalError, OptionError
from epochal.files import Files
from epochal.tools.inspect.epoch_overlay import view_with_epochs
from epochal.tools.inspect.listing import CheckpointListing, gather
from epochal.tools.inspect.source_listing import FILE, read_sources
from epochal.tools.inspect.view_models import offsets_of
from epochal.tools.read_state.export import json_batches
from epochal.tools.read_state.overview import StoreOverview, overview
from epochal.tools.read_state.read import StateReader, open_batch, open_reader
from epochal.tools.read_state.stored_rows import measure_store

if TYPE_CHECKING:
    from epochal.connectors.kafka.kafka_client import KafkaClient

PAGE_ROWS = 50
MAX_PAGE_ROWS = 500
NEWEST_TRIES = 2
BUDGET_SECONDS = 0.5
"""How long one call may measure state. The next call continues where it stopped."""
MAX_MEASURED = 20_000
REQUEST_SECONDS = 4.0
MIN_SECONDS = 1.0
MAX_KEPT = 64
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
                state_size = measure_state(files, batch_id)
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
        from epochal.connectors.kafka.kafka_client import KafkaClient
        from epochal.connectors.kafka.offsets import Cluster

        with self._lock:
            if self._client is None:
                cluster = Cluster.of(self._settings)
                self._client = KafkaClient(cluster, request_seconds=REQUEST_SECONDS)
            target = LagTarget(Checkpoint(files), None)
            lags = measure(self._client, [target], self._clock.now_ms())
        ends = {
            (lag.topic, lag.partition): EndOffset(lag.latest, lag.seconds)
            for lag in lags
            if lag.latest is not None
        }
        return ends, None


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


@dataclass(frozen=True, slots=True)
class StateSelection:
    operator: int = 0
    store: str = "default"
    batch: int | None = None
    """None for the newest committed batch."""
    partition: int | None = None


def offsets_page(files: Files, before: int | None, limit: int) -> dict[str, Any]:
    """List batches below `before`, newest first. Unreadable entries have a `problem` instead."""
    checkpoint = Checkpoint(files)
    ids = checkpoint.offsets.batch_ids()
    committed = set(checkpoint.commits.batch_ids())
    wanted = [batch_id for batch_id in reversed(ids) if before is None or batch_id < before]
    shown = wanted[: max(1, min(limit, MAX_PAGE_ROWS))]
    return {
        "batches": [_batch(checkpoint, batch_id, batch_id in committed) for batch_id in shown],
        "older": shown[-1] if len(wanted) > len(shown) else None,
        "newest": ids[-1] if ids else None,
        "oldest": ids[0] if ids else None,
        "count": len(ids),
    }


def stores(files: Files, batch: int | None) -> dict[str, Any]:
    """List the stores and variables as of a batch; none if no batch is committed."""
    batches = _range(Checkpoint(files))
    if batch is None and batches["newest"] is None:
        return {"batch_id": None, "stores": [], **batches}

    def read() -> dict[str, Any]:
        return {**overview(open_batch(files, batch)).as_json(), **_range(Checkpoint(files))}

    return _with_retries(read, batch)


def state_page(files: Files, selection: StateSelection, page: int, size: int) -> dict[str, Any]:
    page, size = max(0, page), max(1, min(size, MAX_PAGE_ROWS))
    first = page * size

    def read() -> dict[str, Any]:
        reader, batch = _reader(files, selection)
        rows = (row for rows in json_batches(reader, selection.partition) for row in rows)
        shown = list(islice(rows, first, first + size + 1))
        return {
            "batch_id": batch,
            "columns": ["partition_id", *(n for n, _ in reader.fields if n != "partition_id")],
            "rows": shown[:size],
            "page": page,
            "more": len(shown) > size,
            "partitions": list(reader.target.partitions),
        }

    return _with_retries(read, selection.batch)


def stats(files: Files, selection: StateSelection) -> dict[str, Any]:
    def read() -> dict[str, Any]:
        reader, batch = _reader(files, selection)
        return {"batch_id": batch, **measure_store(reader, largest=1).as_json()}

    return _with_retries(read, selection.batch)


def measure_state(files: Files, batch: int) -> StateSize:
    opened = open_batch(files, batch)
    sizes = [measure_store(_open(opened, store), largest=0) for store in overview(opened).stores]
    return StateSize(sum(size.rows for size in sizes), sum(size.bytes for size in sizes))


def _with_retries(read: Callable[[], dict[str, Any]], batch: int | None) -> dict[str, Any]:
    """Call `read`, and again if it fails on the newest batch.

    The query may purge that batch's files meanwhile; then there is a newer batch to read. A batch
    that the user named is not read again.
    """
    for _ in range(NEWEST_TRIES if batch is None else 0):
        try:
            return read()
        except OptionError:
            raise
        except (EpochalError, OSError):
            continue
    return read()


def _batch(checkpoint: Checkpoint, batch_id: int, committed: bool) -> dict[str, Any]:
    try:
        entry = checkpoint.offsets.get(batch_id)
    except (EpochalError, OSError) as error:
        return {"batch_id": batch_id, "committed": committed, "problem": str(error)}
    if entry is None:
        return {"batch_id": batch_id, "committed": committed, "problem": "it was just purged"}
    offsets = offsets_of(entry)
    return {
        "batch_id": batch_id,
        "committed": committed,
        "offsets": list(offsets) if isinstance(offsets, tuple) else offsets,
        "timestamp_ms": entry.timestamp_ms,
        "watermark_ms": entry.watermark_ms,
    }


def _range(checkpoint: Checkpoint) -> dict[str, Any]:
    ids = checkpoint.commits.batch_ids()
    return {"oldest": ids[0] if ids else None, "newest": ids[-1] if ids else None}


def _reader(files: Files, selection: StateSelection) -> tuple[StateReader, int]:
    opened = open_batch(files, selection.batch)
    views = [
        store
        for store in overview(opened).stores
        if store.operator_id == selection.operator and store.name == selection.store
    ]
    if not views:
        raise OptionError(
            f"Operator {selection.operator} of this checkpoint has no store {selection.store!r}."
        )
    return _open(opened, views[0]), opened.batch_id


def _open(opened: Any, store: StoreOverview) -> StateReader:
    if store.kind in ("store", "family"):
        return open_reader(opened, store.operator_id, store.name)
    if store.kind == "TimerState":
        return open_reader(opened, store.operator_id, timers=True)
    return open_reader(opened, store.operator_id, state_variable=store.name)
