"""What an attempt stands on: logs, sources, sink and state; and how it finds its footing.

Everything that touches storage for an epoch is here, one function for each step, so that recovery
finishes an epoch by the very code that would have finished it before the crash.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeAlias

from epochal.checkpoint.entries import CommitEntry, CommitLog, OffsetEntry, OffsetLog
from epochal.epoch.acknowledging import acknowledged_in_tasks
from epochal.epoch.effects import CommitSink, Decide, LogCommit, PublishState
from epochal.epoch.manifest import MANIFEST_KEY, Manifest, manifest_of, manifest_to_json
from epochal.epoch.messages import PreparedState
from epochal.epoch.publish_state import StateFiles
from epochal.epoch.recovery import DropEpoch, Logs, RecoveryPlan, open_epoch, plan_recovery
from epochal.errors import CheckpointLostError, ConcurrentUpdateError
from epochal.files import join_url

logger = logging.getLogger(__name__)

Positions: TypeAlias = Mapping[str, str]
"""By the id of a source's partition."""


class LoggedSource(Protocol):
    """What is asked of a source here; see `connectors.contract`."""

    @property
    def acknowledges_in_tasks(self) -> bool: ...
    def initial(self) -> Positions: ...
    def resume(self, offset: str) -> Positions: ...
    def offset(self, positions: Positions) -> str: ...
    def boundary(self, positions: Positions) -> Positions: ...
    def acknowledge(self, epoch: int, positions: Positions) -> None: ...


class CommittedSink(Protocol):
    """What is asked of a sink here; see `connectors.contract`."""

    @property
    def decides(self) -> bool: ...
    def fence(self, attempt: int) -> None: ...
    def decided(self, epoch: int) -> bool: ...
    def commit(self, epoch: int, messages: Sequence[bytes]) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """What an attempt stands on."""

    url: str
    """The checkpoint's."""
    offsets: OffsetLog
    commits: CommitLog
    sources: Sequence[LoggedSource]
    sink: CommittedSink
    state: StateFiles
    owned: Callable[[], bool]
    """Whether this run still owns the checkpoint: `Guard.still_mine`."""
    run_id: str
    delays_ms: tuple[int, ...] = ()
    """Of each watermark of the plan."""
    min_batches_to_retain: int = 100


@dataclass(frozen=True, slots=True)
class Recovered:
    """From where the attempt goes on."""

    first_epoch: int
    positions: tuple[Positions, ...]
    state: tuple[PreparedState, ...] | None
    """The versions to load; None if they go by the number `first_epoch`, or none are there."""
    highs: tuple[int, ...]
    watermark_ms: int
    base: OffsetEntry | None
    """The entry that the first epoch follows: pinned settings, and the log's version."""


def read_logs(ground: Ground) -> Logs:
    """What the logs hold that decides how to go on."""
    offset_ids, commit_ids = ground.offsets.batch_ids(), ground.commits.batch_ids()
    found = ((epoch, ground.offsets.get(epoch)) for epoch in offset_ids[-2:])
    return Logs(
        ground.url,
        tuple(offset_ids),
        tuple(commit_ids),
        {epoch: entry for epoch, entry in found if entry is not None},
        ground.commits.get(commit_ids[-1]) if commit_ids else None,
    )


def newest_attempt(offsets: OffsetLog) -> int:
    """The newest attempt that a recent decision names, -1 if none: new ones must be above it."""
    found = -1
    for epoch in offsets.batch_ids()[-2:]:
        entry = offsets.get(epoch)
        manifest = manifest_of(entry, join_url(offsets.url, str(epoch))) if entry else None
        found = max(found, manifest.attempt if manifest else -1)
    return found


def recover(ground: Ground, attempt: int) -> Recovered:
    """Shut earlier attempts out, finish or drop what they left open, say where to go on."""
    # In this order: what an earlier attempt decides after it is shut out must not be missed.
    ground.sink.fence(attempt)
    logs = read_logs(ground)
    plan = plan_recovery(
        logs,
        attempt=attempt,
        sources=len(ground.sources),
        delays_ms=ground.delays_ms,
        sink_decides=ground.sink.decides,
        sink_decided=_ask_sink(ground, logs),
    )
    for step in plan.steps:
        logger.info("recovering epoch %d: %s", step.epoch, type(step).__name__)
        if isinstance(step, DropEpoch):
            ground.offsets.purge_after(step.epoch - 1)
        else:
            follow_up(ground, step)
    state = None if plan.manifest is None else plan.manifest.state
    return Recovered(
        plan.first_epoch,
        _start_positions(ground, plan),
        state,
        plan.highs,
        plan.watermark_ms,
        plan.base,
    )


def decide(
    ground: Ground,
    attempt: int,
    step: Decide,
    template: OffsetEntry,
    positions: tuple[Positions, ...],
    offsets: Sequence[str],
    timestamp_ms: int,
) -> None:
    """Create the offset entry; from here on the epoch is finished, whatever happens."""
    if not ground.owned():
        raise CheckpointLostError(ground.url, ground.run_id, "its lease ran out or was taken")
    manifest = Manifest(
        step.epoch, attempt, ground.run_id, positions, step.messages, step.state, step.highs
    )
    by_source: tuple[str | None, ...] | dict[str, str | None] = tuple(offsets)
    if template.version == 2:
        by_source = dict(zip(template.by_source, offsets, strict=True))
    entry = replace(
        template,
        offsets=by_source,
        watermark_ms=step.watermark_ms,
        timestamp_ms=timestamp_ms,
        control_batch_info=None,
        extra={**template.extra, MANIFEST_KEY: manifest_to_json(manifest)},
        keys=None,
        has_metadata=True,
    )
    if not ground.offsets.add(step.epoch, entry):
        raise ConcurrentUpdateError(ground.offsets.url, step.epoch)


def follow_up(ground: Ground, step: CommitSink | PublishState | LogCommit) -> None:
    """Take a step that follows a decision."""
    match step:
        case CommitSink(epoch, messages):
            ground.sink.commit(epoch, messages)
        case PublishState(_, state):
            ground.state.publish(state)
        case LogCommit(epoch, next_watermark_ms):
            if not ground.commits.add(epoch, CommitEntry(next_watermark_ms=next_watermark_ms)):
                raise ConcurrentUpdateError(ground.commits.url, epoch)


def confirm(ground: Ground, attempt: int, epoch: int) -> None:
    """Check, where the sink decides, that it was this attempt's epoch that it committed.

    A later attempt drops an entry whose epoch the sink has not, and logs and commits its own. The
    sink has nothing to do then when this one commits, and does not complain; but the state that
    this attempt would publish next is not that of the epoch that counts.
    """
    if not ground.sink.decides:
        return
    entry, path = ground.offsets.get(epoch), join_url(ground.offsets.url, str(epoch))
    manifest = manifest_of(entry, path, epoch) if entry is not None else None
    if manifest is None or manifest.attempt != attempt:
        raise CheckpointLostError(ground.url, ground.run_id, f"{path} is not its own any more")


def purge(ground: Ground, epoch: int) -> None:
    """Drop log entries that are older than need be kept, now that `epoch` is committed."""
    kept = ground.min_batches_to_retain
    # To list a log takes as long as to add to it, so a long one is purged a tenth at a time.
    if kept <= epoch and epoch % max(1, kept // 10) == 0:
        ground.offsets.purge(epoch + 1 - kept)
        ground.commits.purge(epoch + 1 - kept)


def acknowledge(ground: Ground, epoch: int, positions: tuple[Positions, ...]) -> None:
    """Tell the sources; one that fails will be told of a later epoch."""
    in_tasks = acknowledged_in_tasks(ground.sources)
    for source, places, by_task in zip(ground.sources, positions, in_tasks, strict=True):
        if by_task:
            continue
        try:
            source.acknowledge(epoch, places)
        except Exception:
            logger.exception("epoch %d could not be acknowledged", epoch)


def _ask_sink(ground: Ground, logs: Logs) -> bool:
    epoch = open_epoch(logs)
    if epoch is None or epoch not in logs.entries:
        return False
    path = join_url(ground.offsets.url, str(epoch))
    is_ours = manifest_of(logs.entries[epoch], path, epoch) is not None
    return (ground.sink.decides or not is_ours) and ground.sink.decided(epoch)


def _start_positions(ground: Ground, plan: RecoveryPlan) -> tuple[Positions, ...]:
    if plan.base is None:
        return tuple(source.initial() for source in ground.sources)
    offsets = plan.base.by_source.values()
    known = (None,) * len(offsets) if plan.manifest is None else plan.manifest.positions
    return tuple(map(_start_of, ground.sources, offsets, known))


def _start_of(source: LoggedSource, offset: str | None, known: Positions | None) -> Positions:
    if offset is None:
        return source.initial() if known is None else known
    if known is not None and source.offset(known) == offset:
        return known
    # Spark wrote it, or somebody has moved the query by its offsets: they have the last word.
    return source.resume(offset)
