"""Decides how a restart continues from the logs it finds. Pure.

A decided epoch is finished, never recomputed. An undecided one is dropped and cut again. Only the
newest offset entry can be open, that is, logged but not committed. Whether it is decided depends on
who wrote it:

| the newest entry, not committed | decided? | recovery |
|---|---|---|
| with our manifest, normal sink | yes, the entry is the decision | publish, commit sink, log |
| with our manifest, sink that decides | if the sink has the epoch | sink first; else drop it |
| without a manifest: written by Spark | if the sink has the epoch | log the commit; else run it |
| the same, and state with unique ids | no: the commit names the state | run it, for its state |

A committed entry with our manifest counts as Spark's if its commit is not ours. We were killed
after that decision, and Spark went on: it ran the batch and left its own state.

Spark writes the offset entry *before* it runs a batch, so its entry is only a plan. Sinks that
remember batch numbers rely on it nevertheless: a batch that runs again has the same rows. So the
first epoch reads exactly the range of that entry, with its watermark and time. The entry is set
aside first, in `.epochal/planned`, because the decision of the epoch creates its own.

Note: the prepared state and staged output of an undecided epoch are not deleted here. Until this
attempt has decided an epoch, a driver that it fenced may still win the race for that number, and
the epoch would need its files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from epochal.checkpoint.entries import CommitEntry, OffsetEntry
from epochal.checkpoint.layout import COMMITS, OFFSETS
from epochal.checkpoint.metadata_log import missing_runs
from epochal.checkpoint.restart import SHUFFLE_PARTITIONS
from epochal.epoch.effects import CommitSink, LogCommit, PublishState, steps_after_decision
from epochal.epoch.event_time.query_watermark import (
    NONE_SEEN,
    Policy,
    WatermarksMove,
    policy_of,
    watermark_of,
)
from epochal.epoch.manifest import Manifest, OpenUnit, is_finished_by_another, manifest_of
from epochal.errors import RecoveryError
from epochal.files import join_url


@dataclass(frozen=True, slots=True)
class Logs:
    """The part of the logs of the checkpoint at `url` that a restart depends on."""

    url: str
    offset_ids: tuple[int, ...]
    commit_ids: tuple[int, ...]
    entries: Mapping[int, OffsetEntry]
    """The two newest, by epoch."""
    commit: CommitEntry | None = None
    """The newest."""
    planned: Mapping[int, OffsetEntry] = field(default_factory=dict)
    """Entries of Spark's that were set aside, by epoch."""

    @property
    def next_watermark_ms(self) -> int:
        return 0 if self.commit is None else self.commit.next_watermark_ms


@dataclass(frozen=True, slots=True)
class QueryShape:
    """What recovery must know of the query."""

    sources: int
    delays_ms: tuple[int, ...] = ()
    """The delay of each watermark of the plan."""
    moves: WatermarksMove = "turn"
    offset_lines: tuple[int, ...] = ()
    """The source of each line in the offset log; empty: one line per source."""
    has_state_ids: bool = False
    """Whether only commits tell which state files are live."""

    @property
    def lines(self) -> tuple[int, ...]:
        return self.offset_lines or tuple(range(self.sources))

    @property
    def unseen(self) -> tuple[int, ...]:
        """The highest event times of a query that has not seen a row."""
        return (NONE_SEEN,) * len(self.delays_ms)

    def policy(self, entry: OffsetEntry) -> Policy:
        """How several watermarks make one. Only Spark's kind of watermark has a choice."""
        return policy_of(entry.conf) if self.moves == "epoch" else "min"


@dataclass(frozen=True, slots=True)
class DropEpoch:
    """Remove the offset entry of an epoch that was not decided."""

    epoch: int


@dataclass(frozen=True, slots=True)
class SetAside:
    """Keep the entry of an epoch that Spark planned, to run exactly that range."""

    epoch: int
    entry: OffsetEntry


@dataclass(frozen=True, slots=True)
class ForgetPlanned:
    """Remove entries that were set aside and are no longer of use, from before the epoch."""

    epoch: int


RecoveryStep: TypeAlias = (
    SetAside | ForgetPlanned | DropEpoch | CommitSink | PublishState | LogCommit
)


@dataclass(frozen=True, slots=True)
class RecoveryPlan:
    """The steps to perform first, in this order, and where to continue after them."""

    steps: tuple[RecoveryStep, ...]
    first_epoch: int
    base: OffsetEntry | None
    """The entry before the first epoch; None in a new checkpoint."""
    manifest: Manifest | None
    """The manifest of `base`; None if Spark wrote it, or ran it after we were killed. Then the
    sources derive positions from its offsets, and the state is version `first_epoch`."""
    highs: tuple[int, ...]
    """Highest event time seen, per watermark; -1 if none."""
    watermark_ms: int
    """Of the first epoch."""
    late_ms: int = 0
    """The watermark of the epoch before it, by which rows of the first epoch are late."""
    planned: OffsetEntry | None = None
    """Where the first epoch must end, if Spark planned it; None to let it end when it is due."""
    unit: OpenUnit | None = None
    """The unit of event time that the first epoch goes on with; None if a new one begins."""


def open_epoch(logs: Logs) -> int | None:
    """Return the epoch that is logged but not committed, if there is one."""
    newest = max(logs.offset_ids, default=None)
    committed = max(logs.commit_ids, default=-1)
    return newest if newest is not None and newest == committed + 1 else None


def plan_recovery(
    logs: Logs,
    query: QueryShape,
    *,
    attempt: int,
    sink_decides: bool = False,
    sink_decided: bool = False,
) -> RecoveryPlan:
    """Return what to do with these logs; `sink_decided` is the sink's answer on `open_epoch`."""
    _check_order(logs)
    _check_fence(logs, attempt)
    plan = _plan(logs, query, sink_decides, sink_decided)
    if plan.planned is None:
        plan = replace(plan, planned=logs.planned.get(plan.first_epoch))
    if stale := [epoch for epoch in logs.planned if epoch != plan.first_epoch]:
        # Spark has run the batch after all, or an edit went back behind it. Last, because nothing
        # depends on it: after a crash before it, the next recovery does it.
        plan = replace(plan, steps=(*plan.steps, ForgetPlanned(max(stale) + 1)))
    return plan


def _plan(logs: Logs, query: QueryShape, sink_decides: bool, sink_decided: bool) -> RecoveryPlan:
    newest = max(logs.offset_ids, default=None)
    if newest is None:
        return RecoveryPlan((), 0, None, None, query.unseen, 0)
    if open_epoch(logs) is None:
        return _resume(logs, newest, (), query, logs.next_watermark_ms)
    entry = _entry(logs, newest)
    manifest = manifest_of(entry, _path(logs, OFFSETS, newest), newest)
    if manifest is None:
        _refuse_control_batch(logs, newest, entry)
        if not sink_decided or query.has_state_ids:
            # With unique ids the lost commit would have named the state of a batch that the sink
            # has. So the batch is run again, as Spark does.
            again = _cut_again(logs, newest, query)
            # Set aside first, then drop: after a crash in between both are there, and the same
            # steps follow again. In the other order the range of the batch would be lost.
            steps = (SetAside(newest, entry), *again.steps)
            return replace(again, steps=steps, planned=entry)
        # Spark finished the batch but crashed before it wrote the commit entry. Its next watermark
        # is lost, so the watermark stays: too low a watermark is safe, it only waits longer.
        steps = (LogCommit(newest, entry.watermark_ms),)
        return _resume(logs, newest, steps, query, entry.watermark_ms)
    if sink_decides and not sink_decided:
        # It stays undecided: the sink had fenced all earlier attempts before it was asked.
        return _cut_again(logs, newest, query)
    counted = _counted(manifest, query, entry.watermark_ms)
    watermark_ms = watermark_of(counted, query.delays_ms, entry.watermark_ms, query.policy(entry))
    finish = steps_after_decision(
        newest, manifest.state, manifest.messages, watermark_ms, sink_decides=sink_decides
    )
    return _resume(logs, newest, finish, query, watermark_ms)


def offsets_of_sources(entry: OffsetEntry, query: QueryShape, path: str) -> tuple[str | None, ...]:
    """Return the offset of each source. Errors name the file of the entry, `path`.

    Spark logs an offset for each time that a source occurs in the query, all of them equal.
    """
    logged = tuple(entry.by_source.values())
    lines = query.lines if entry.version == 1 else tuple(range(query.sources))
    if len(logged) != len(lines):
        reason = f"it has offsets of {len(logged)} sources, but the query has {len(lines)}"
        raise RecoveryError((path,), reason)
    offsets: dict[int, str | None] = {}
    for source, offset in zip(lines, logged, strict=True):
        if offsets.setdefault(source, offset) != offset:
            differ = f"its offsets differ: {offsets[source]} and {offset}"
            reason = f"source {source} occurs more than once in the query, but {differ}"
            raise RecoveryError((path,), reason)
    return tuple(offsets[source] for source in range(query.sources))


def _cut_again(logs: Logs, epoch: int, query: QueryShape) -> RecoveryPlan:
    drop = (DropEpoch(epoch),)
    if epoch == 0:
        return RecoveryPlan(drop, 0, None, None, query.unseen, 0)
    return _resume(logs, epoch - 1, drop, query, logs.next_watermark_ms)


def _resume(
    logs: Logs, base: int, steps: tuple[RecoveryStep, ...], query: QueryShape, watermark_ms: int
) -> RecoveryPlan:
    entry, path = _entry(logs, base), _path(logs, OFFSETS, base)
    manifest = manifest_of(entry, path, base)
    commit = logs.commit if base == max(logs.commit_ids, default=-1) else None
    if manifest is not None and is_finished_by_another(manifest, commit):
        manifest = None
    if manifest is None:
        offsets_of_sources(entry, query, path)
    elif len(manifest.positions) != query.sources:
        logged = len(manifest.positions)
        reason = f"it has offsets of {logged} sources, but the query has {query.sources}"
        raise RecoveryError((path,), reason)
    highs = _highs(manifest, query, watermark_ms)
    late_ms = entry.watermark_ms
    watermark_ms = max(watermark_ms, late_ms)
    if query.moves == "turn":
        # The epochs of such a query do not have a watermark of their own, so that of the first one
        # need not be the one in the log.
        counted = _counted(manifest, query, watermark_ms)
        watermark_ms = watermark_of(counted, query.delays_ms, watermark_ms)
    unit = _unit(manifest, query)
    return RecoveryPlan(steps, base + 1, entry, manifest, highs, watermark_ms, late_ms, None, unit)


def _unit(manifest: Manifest | None, query: QueryShape) -> OpenUnit | None:
    """Return the open unit, if the query still has the watermarks and sources of the manifest."""
    unit = None if manifest is None else manifest.unit
    if unit is None or len(unit.counted) != len(query.delays_ms):
        return None
    return unit if len(unit.ends) == query.sources else None


def _counted(manifest: Manifest | None, query: QueryShape, watermark_ms: int) -> tuple[int, ...]:
    """Return the highest event times that the watermark follows."""
    unit = _unit(manifest, query)
    return _highs(manifest, query, watermark_ms) if unit is None else unit.counted


def _highs(manifest: Manifest | None, query: QueryShape, watermark_ms: int) -> tuple[int, ...]:
    """Return the highest event times of the manifest. Spark logs only the resulting watermark."""
    if manifest is not None and len(manifest.watermarks) == len(query.delays_ms):
        return manifest.watermarks
    return tuple(
        watermark_ms + delay if watermark_ms > 0 else NONE_SEEN for delay in query.delays_ms
    )


def _check_order(logs: Logs) -> None:
    newest, committed = max(logs.offset_ids, default=-1), max(logs.commit_ids, default=-1)
    if committed > newest:
        paths = _path(logs, COMMITS, committed), _path(logs, OFFSETS, committed)
        reason = f"epoch {committed} is committed, but its offsets are not logged"
        raise RecoveryError(paths, reason)
    if newest > committed + 1:
        paths = _path(logs, OFFSETS, committed + 1), _path(logs, OFFSETS, newest)
        after = f"epoch {committed}" if logs.commit_ids else "none"
        reason = "the log has a gap between them"
        if not missing_runs(logs.offset_ids, committed + 1, newest):
            open_count = newest - committed
            reason = f"{open_count} epochs are logged without a commit, but at most one may be"
        raise RecoveryError(paths, f"{reason} (newest commit: {after})")
    if newest >= 0 and newest - 1 == committed >= 0 and committed not in logs.offset_ids:
        path = _path(logs, OFFSETS, committed)
        raise RecoveryError((path,), f"the entry before open epoch {newest} is missing")


def _check_fence(logs: Logs, attempt: int) -> None:
    for epoch, entry in logs.entries.items():
        path = _path(logs, OFFSETS, epoch)
        manifest = manifest_of(entry, path)
        if manifest is not None and manifest.attempt >= attempt:
            # Only attempts that were published after this one are above it, so it is fenced.
            reason = (
                f"epoch {epoch} was decided by attempt {manifest.attempt} of run "
                f"{manifest.run_id}, but this is attempt {attempt}: a later run has taken over"
            )
            raise RecoveryError((path,), reason)


def _refuse_control_batch(logs: Logs, epoch: int, entry: OffsetEntry) -> None:
    path = _path(logs, OFFSETS, epoch)
    if entry.control_batch_info is not None:
        kind = entry.control_batch_info.operation_type
        raise RecoveryError((path,), f"Spark started batch {epoch}, {kind}, but did not finish it")
    before = logs.entries.get(epoch - 1)
    if before is None or SHUFFLE_PARTITIONS not in before.conf:
        return
    was, now = before.conf[SHUFFLE_PARTITIONS], entry.conf.get(SHUFFLE_PARTITIONS)
    if now is not None and now != was:
        reason = f"a repartition from {was} to {now} partitions was started but not finished"
        raise RecoveryError((path,), reason)


def _entry(logs: Logs, epoch: int) -> OffsetEntry:
    if epoch not in logs.entries:
        raise RecoveryError((_path(logs, OFFSETS, epoch),), "the entry is missing")
    return logs.entries[epoch]


def _path(logs: Logs, log: str, epoch: int) -> str:
    return join_url(logs.url, f"{log}/{epoch}")
