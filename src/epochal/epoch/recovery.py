"""Decides what a restart makes of the logs it finds. Pure.

A decided epoch is finished, never recomputed; an undecided one is dropped and cut anew. Of all
that the logs hold only the newest offset entry can be open, and whether it is decided depends on
who wrote it: one of ours with its manifest is the decision itself, unless the sink decides; one of
Spark's only says what Spark had planned.

What a reader would get wrong: whatever an undecided epoch left behind (prepared state, staged
output) is not cleaned up here. Until this attempt has decided an epoch of its own, a driver that
it fenced may still win the race for that number, and then its files are the ones that count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from epochal.checkpoint.entries import CommitEntry, OffsetEntry
from epochal.checkpoint.id_ranges import missing_runs
from epochal.checkpoint.layout import COMMITS, OFFSETS
from epochal.checkpoint.restart import SHUFFLE_PARTITIONS
from epochal.epoch.effects import CommitSink, LogCommit, PublishState
from epochal.epoch.manifest import Manifest, manifest_of
from epochal.epoch.query_watermark import NONE_SEEN, watermark_of
from epochal.errors import RecoveryError
from epochal.files import join_url


@dataclass(frozen=True, slots=True)
class Logs:
    """What the logs of the checkpoint at `url` hold, as far as a restart needs it."""

    url: str
    offset_ids: tuple[int, ...]
    commit_ids: tuple[int, ...]
    entries: Mapping[int, OffsetEntry]
    """The newest two, by epoch."""
    commit: CommitEntry | None = None
    """The newest."""


@dataclass(frozen=True, slots=True)
class DropEpoch:
    """Remove the offset entry of an epoch that was not decided."""

    epoch: int


RecoveryStep: TypeAlias = DropEpoch | CommitSink | PublishState | LogCommit


@dataclass(frozen=True, slots=True)
class RecoveryPlan:
    """What to do first, in this order, and from where to go on."""

    steps: tuple[RecoveryStep, ...]
    first_epoch: int
    base: OffsetEntry | None
    """The entry that the first epoch follows; None in a new checkpoint."""
    manifest: Manifest | None
    """What `base` names; None if Spark wrote it. Then positions are the sources' reading of its
    offsets, and state is the version of number `first_epoch`."""
    highs: tuple[int, ...]
    """Highest event time seen, per watermark; -1 if none."""
    watermark_ms: int


def open_epoch(logs: Logs) -> int | None:
    """The one epoch that is logged and not committed, about which the sink may have to be asked."""
    newest = max(logs.offset_ids, default=None)
    committed = max(logs.commit_ids, default=-1)
    return newest if newest is not None and newest == committed + 1 else None


def plan_recovery(
    logs: Logs,
    *,
    attempt: int,
    sources: int,
    delays_ms: Sequence[int] = (),
    sink_decides: bool = False,
    sink_decided: bool = False,
) -> RecoveryPlan:
    """What to do with these logs; `sink_decided` is the sink's answer about `open_epoch`."""
    _check_order(logs)
    _check_fence(logs, attempt)
    newest = max(logs.offset_ids, default=None)
    if newest is None:
        return RecoveryPlan((), 0, None, None, (NONE_SEEN,) * len(delays_ms), 0)
    if open_epoch(logs) is None:
        return _resume(logs, newest, (), sources, delays_ms, _next_watermark(logs))
    entry = _entry(logs, newest)
    manifest = manifest_of(entry, _path(logs, OFFSETS, newest), newest)
    if manifest is None:
        _refuse_control_batch(logs, newest, entry)
        if not sink_decided:
            return _cut_anew(logs, newest, sources, delays_ms)
        # Spark did all but say so. What the watermark became is not known: it stays.
        steps = (LogCommit(newest, entry.watermark_ms),)
        return _resume(logs, newest, steps, sources, delays_ms, entry.watermark_ms)
    if sink_decides and not sink_decided:
        return _cut_anew(logs, newest, sources, delays_ms)
    highs = _highs(manifest, delays_ms, entry.watermark_ms)
    watermark_ms = watermark_of(highs, delays_ms, entry.watermark_ms)
    finish = (
        CommitSink(newest, manifest.messages),
        PublishState(newest, manifest.state),
        LogCommit(newest, watermark_ms),
    )
    return _resume(logs, newest, finish, sources, delays_ms, watermark_ms)


def _cut_anew(logs: Logs, epoch: int, sources: int, delays_ms: Sequence[int]) -> RecoveryPlan:
    drop = (DropEpoch(epoch),)
    if epoch == 0:
        return RecoveryPlan(drop, 0, None, None, (NONE_SEEN,) * len(delays_ms), 0)
    return _resume(logs, epoch - 1, drop, sources, delays_ms, _next_watermark(logs))


def _resume(
    logs: Logs,
    base: int,
    steps: tuple[RecoveryStep, ...],
    sources: int,
    delays_ms: Sequence[int],
    watermark_ms: int,
) -> RecoveryPlan:
    entry, path = _entry(logs, base), _path(logs, OFFSETS, base)
    manifest = manifest_of(entry, path, base)
    logged = len(entry.offsets) if manifest is None else len(manifest.positions)
    if logged != sources:
        raise RecoveryError((path,), f"it has offsets of {logged} sources, the query has {sources}")
    highs = _highs(manifest, delays_ms, watermark_ms)
    watermark_ms = watermark_of(highs, delays_ms, max(watermark_ms, entry.watermark_ms))
    return RecoveryPlan(steps, base + 1, entry, manifest, highs, watermark_ms)


def _highs(
    manifest: Manifest | None, delays_ms: Sequence[int], watermark_ms: int
) -> tuple[int, ...]:
    """Per watermark, as the manifest has them; from Spark only their minimum is known."""
    if manifest is not None and len(manifest.watermarks) == len(delays_ms):
        return manifest.watermarks
    return tuple(watermark_ms + delay if watermark_ms > 0 else NONE_SEEN for delay in delays_ms)


def _check_order(logs: Logs) -> None:
    newest, committed = max(logs.offset_ids, default=-1), max(logs.commit_ids, default=-1)
    if committed > newest:
        missing = _path(logs, OFFSETS, committed)
        paths = (_path(logs, COMMITS, committed), missing)
        raise RecoveryError(
            paths, f"epoch {committed} is committed, and its offsets are not logged"
        )
    if newest > committed + 1:
        first = _path(logs, OFFSETS, committed + 1)
        paths = (first, _path(logs, OFFSETS, newest))
        after = f"epoch {committed}" if logs.commit_ids else "none"
        if not missing_runs(logs.offset_ids, committed + 1, newest):
            reason = f"they are {newest - committed} epochs without a commit, one at most may be"
        else:
            reason = "the log has a gap between them"
        raise RecoveryError(paths, f"{reason} (newest commit: {after})")
    if newest >= 0 and newest - 1 == committed >= 0 and committed not in logs.offset_ids:
        path = _path(logs, OFFSETS, committed)
        raise RecoveryError((path,), f"the entry before open epoch {newest} is missing")


def _check_fence(logs: Logs, attempt: int) -> None:
    for epoch, entry in logs.entries.items():
        path = _path(logs, OFFSETS, epoch)
        manifest = manifest_of(entry, path)
        if manifest is not None and manifest.attempt >= attempt:
            reason = (
                f"epoch {epoch} was decided by attempt {manifest.attempt} of run "
                f"{manifest.run_id}, this is attempt {attempt}: a later run has taken over"
            )
            raise RecoveryError((path,), reason)


def _refuse_control_batch(logs: Logs, epoch: int, entry: OffsetEntry) -> None:
    path = _path(logs, OFFSETS, epoch)
    if entry.control_batch_info is not None:
        kind = entry.control_batch_info.operation_type
        raise RecoveryError((path,), f"Spark has begun batch {epoch}, {kind}, and not finished it")
    before = logs.entries.get(epoch - 1)
    if before is None or SHUFFLE_PARTITIONS not in before.conf:
        return
    was, now = before.conf[SHUFFLE_PARTITIONS], entry.conf.get(SHUFFLE_PARTITIONS)
    if now is not None and now != was:
        reason = f"a repartition from {was} to {now} partitions was begun and not finished"
        raise RecoveryError((path,), reason)


def _next_watermark(logs: Logs) -> int:
    return 0 if logs.commit is None else logs.commit.next_watermark_ms


def _entry(logs: Logs, epoch: int) -> OffsetEntry:
    if epoch not in logs.entries:
        raise RecoveryError((_path(logs, OFFSETS, epoch),), "the entry is missing")
    return logs.entries[epoch]


def _path(logs: Logs, log: str, epoch: int) -> str:
    return join_url(logs.url, f"{log}/{epoch}")
