"""Performs the steps of an epoch on storage: logs, sink, state and sources.

There is one function per step. Recovery calls the same functions, so a decided epoch is finished by
the code that would have finished it before the crash.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from epochal.checkpoint.entries import CommitEntry, CommitLog, OffsetEntry, OffsetLog
from epochal.epoch import recovery
from epochal.epoch.contract import CommittedSink, LoggedSource, Positions, acknowledged_in_tasks
from epochal.epoch.effects import CommitSink, LogCommit, PublishState
from epochal.epoch.epoch_files.chain_files import StateFiles
from epochal.epoch.epoch_files.state_chain import StateChain, oldest_retained
from epochal.epoch.event_time.query_watermark import QueryWatermark, WatermarksMove, watermark_of
from epochal.epoch.event_time.units import Units
from epochal.epoch.manifest import (
    MANIFEST_KEY,
    Manifest,
    commit_mark,
    is_live,
    manifest_of,
    manifest_to_json,
)
from epochal.epoch.messages import PreparedState
from epochal.errors import CheckpointLostError, ClaimExpiredError
from epochal.files import Files, join_url

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochResources:
    """The logs, sources, sink and state that an attempt works on."""

    url: str
    """Of the checkpoint."""
    offsets: OffsetLog
    commits: CommitLog
    sources: Sequence[LoggedSource]
    sink: CommittedSink
    state: StateFiles
    owned: Callable[[], bool]
    """Whether this run still owns the checkpoint: `Claim.still_mine`."""
    run_id: str
    delays_ms: tuple[int, ...] = ()
    """The delay of each watermark of the plan."""
    planned: Files | None = None
    """Where entries are set aside that Spark planned: `.epochal/planned`."""
    watermarks_move: WatermarksMove = "turn"
    offset_lines: tuple[int, ...] = ()
    """The source of each line in the offset log; empty: one line per source."""
    min_batches_to_retain: int = 100
    commit_version: int = 1
    """Of the commit entries: 2 if they name the unique ids of state files."""
    is_stateful: bool = False

    @property
    def query(self) -> recovery.QueryShape:
        return recovery.QueryShape(
            len(self.sources),
            self.delays_ms,
            self.watermarks_move,
            self.offset_lines,
            has_state_ids=self.is_stateful and self.commit_version > 1,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered(recovery.RecoveryPlan):
    """Where the attempt continues, after the steps of the plan."""

    positions: tuple[Positions, ...]
    state: tuple[PreparedState, ...] | None
    """The versions to load. None if Spark wrote the last epoch, so that the number `first_epoch`
    identifies them, or if there is no state yet."""
    offsets: tuple[str | None, ...] = ()
    """The offset of each source in `base`; empty if there is none."""
    settled: bool = True
    """Whether only more rows can close windows."""
    commit: CommitEntry = field(default_factory=CommitEntry)
    """Of the epoch before the first one, if Spark wrote it; it may name the versions by ids."""
    has_output: bool = False
    """Whether the sink has the output of the first epoch, which is run again for its state."""
    chain: StateChain | None = None
    """The files with the state before the first epoch; None if Spark's files have all of it."""
    floor: int = 0
    """The lowest version of the state that a retained decision starts from."""

    @property
    def published(self) -> int:
        return self.first_epoch if self.chain is None else self.chain.published

    def watermark(
        self, query: recovery.QueryShape, template: OffsetEntry, units: Units
    ) -> QueryWatermark:
        return QueryWatermark(
            first_epoch=self.first_epoch,
            highs=self.highs,
            delays_ms=query.delays_ms,
            watermark_ms=self.watermark_ms,
            late_ms=self.late_ms,
            moves=query.moves,
            policy=query.policy(template),
            units=units,
        )


def read_logs(resources: EpochResources) -> recovery.Logs:
    """Read the part of the logs that recovery depends on."""
    offset_ids, commit_ids = resources.offsets.batch_ids(), resources.commits.batch_ids()
    newest = ((epoch, resources.offsets.get(epoch)) for epoch in offset_ids[-2:])
    planned = resources.planned
    return recovery.Logs(
        resources.url,
        tuple(offset_ids),
        tuple(commit_ids),
        {epoch: entry for epoch, entry in newest if entry is not None},
        resources.commits.get(commit_ids[-1]) if commit_ids else None,
        {} if planned is None else dict(OffsetLog(planned, read_only=True).get_range()),
    )


def newest_attempt(offsets: OffsetLog) -> int:
    """Return the newest attempt in the last two decisions, -1 if none. New ones must be higher."""
    newest = -1
    for epoch in offsets.batch_ids()[-2:]:
        entry = offsets.get(epoch)
        manifest = manifest_of(entry, join_url(offsets.url, str(epoch))) if entry else None
        newest = max(newest, manifest.attempt if manifest else -1)
    return newest


def recover(resources: EpochResources, attempt: int) -> Recovered:
    """Fence earlier attempts, finish or drop their open epoch, return where to continue."""
    # Fence first, read and ask after. In the other order an earlier attempt could still commit an
    # epoch to the sink after the logs were read, and this attempt would drop that epoch and cut it
    # again.
    resources.sink.fence(attempt)
    logs = read_logs(resources)
    plan = recovery.plan_recovery(
        logs,
        resources.query,
        attempt=attempt,
        sink_decides=resources.sink.decides,
        sink_decided=_ask_sink(resources, logs),
    )
    for step in plan.steps:
        logger.info("recovering epoch %d: %s", step.epoch, type(step).__name__)
        match step:
            case recovery.DropEpoch(epoch):
                drop_epoch(resources, epoch, logs.entries[epoch])
            case recovery.SetAside(epoch, entry):
                if resources.planned is not None:
                    OffsetLog(resources.planned).add(epoch, entry)
            case recovery.ForgetPlanned(epoch):
                if resources.planned is not None:
                    OffsetLog(resources.planned).purge(epoch)
            case _:
                follow_up(resources, step)
    state = None if plan.manifest is None else plan.manifest.state
    chain = None if plan.manifest is None else plan.manifest.chain
    is_committed = plan.first_epoch - 1 == max(logs.commit_ids, default=-1)
    if state is not None and is_committed and not is_live(state, logs.commit):
        logger.warning("epoch %d was run again by Spark, whose state counts", plan.first_epoch - 1)
        state = chain = None
    commit = logs.commit if state is None and is_committed and logs.commit else CommitEntry()
    if chain is not None:
        state = None
        commit = _commit_before(resources, chain.published)
    offsets: tuple[str | None, ...] = ()
    if plan.base is not None:
        path = join_url(resources.offsets.url, str(plan.first_epoch - 1))
        offsets = recovery.offsets_of_sources(plan.base, resources.query, path)
    of_plan: dict[str, Any] = {item.name: getattr(plan, item.name) for item in fields(plan)}
    return Recovered(
        **of_plan,
        positions=_start_positions(resources, plan, offsets),
        state=state,
        offsets=offsets,
        settled=_is_settled(resources.query, plan),
        commit=commit,
        has_output=_has_output(resources, plan),
        chain=chain,
        floor=_floor(resources, logs, plan.first_epoch, chain),
    )


def drop_epoch(resources: EpochResources, epoch: int, entry: OffsetEntry) -> None:
    """Remove the offset entry of an epoch that was not decided: this very entry and no other.

    This driver may have been paused since it read the entry. If a later one has taken over, the
    number belongs to an epoch of that one, which must stay.

    Note: storage cannot delete on a condition. A driver that is paused for longer than its lease
    between the last look and the deletion can still remove the entry of its successor.
    """
    path = join_url(resources.offsets.url, str(epoch))
    if not resources.owned():
        raise ClaimExpiredError(resources.url, resources.run_id)
    logged = resources.offsets.get(epoch)
    if logged is not None and logged != entry:
        raise CheckpointLostError(
            resources.url, resources.run_id, f"another run has replaced {path}"
        )
    resources.offsets.remove(epoch)


def decide(
    resources: EpochResources,
    manifest: Manifest,
    template: OffsetEntry,
    offsets: Sequence[str],
    watermark_ms: int,
    timestamp_ms: int,
) -> None:
    """Create the offset entry. This is the decision: from now on the epoch is only finished."""
    # This check only stops a late driver early. Safety comes from `create` below, which fails if
    # the entry exists: of two drivers that race for an epoch, exactly one wins.
    if not resources.owned():
        raise ClaimExpiredError(resources.url, resources.run_id)
    # Before the decision, to save time. A crash before `create` leaves what the sink has begun, but
    # nothing visible: the epoch is cut again, with other messages.
    resources.sink.begin_commit(manifest.epoch, manifest.messages)
    lines = resources.query.lines
    by_source: tuple[str | None, ...] | dict[str, str | None] = tuple(offsets[n] for n in lines)
    if template.version == 2:
        by_source = dict(zip(template.by_source, offsets, strict=True))
    entry = replace(
        template,
        offsets=by_source,
        watermark_ms=watermark_ms,
        timestamp_ms=timestamp_ms,
        control_batch_info=None,
        extra={**template.extra, MANIFEST_KEY: manifest_to_json(manifest)},
        keys=None,
        has_metadata=True,
    )
    resources.offsets.create(manifest.epoch, entry)


def follow_up(resources: EpochResources, step: CommitSink | PublishState | LogCommit) -> None:
    """Perform a step that follows a decision. Each may be repeated after a crash."""
    match step:
        case CommitSink(epoch, messages):
            # After a crash between this and the commit entry it is repeated, with the messages of
            # the manifest. The sink knows the epoch by its number.
            resources.sink.commit(epoch, messages)
        case PublishState(_, state):
            resources.state.publish(state)
        case LogCommit(epoch, next_watermark_ms, ids):
            mark = commit_mark(resources.run_id)
            entry = CommitEntry(next_watermark_ms=next_watermark_ms, extra=mark)
            if resources.commit_version > 1 or ids:
                entry = replace(entry, version=2, state_unique_ids=ids or {})
            # Fails if it exists: recovery asks for it only where it is missing, so another driver
            # has created it meanwhile, and this one has lost the checkpoint.
            resources.commits.create(epoch, entry)


def confirm(resources: EpochResources, attempt: int, epoch: int) -> None:
    """Check, if the sink decides, that the epoch in the sink is the one of this attempt.

    A later attempt may have dropped this attempt's offset entry, because the sink did not have the
    epoch yet, and committed its own epoch under the same number. The sink then ignores our commit
    without an error, since it already has that number. Publishing our state would mix two epochs.
    """
    if not resources.sink.decides:
        return
    manifest = _decision(resources.offsets, epoch)
    if manifest is None or manifest.attempt != attempt:
        path = join_url(resources.offsets.url, str(epoch))
        raise CheckpointLostError(
            resources.url, resources.run_id, f"{path} belongs to another attempt"
        )


def acknowledge(resources: EpochResources, epoch: int, positions: tuple[Positions, ...]) -> None:
    """Acknowledge the epoch to the sources for which the driver does it.

    A failure is only logged: the acknowledgement of a later epoch includes this one.
    """
    in_tasks = acknowledged_in_tasks(resources.sources)
    for source, at, by_task in zip(resources.sources, positions, in_tasks, strict=True):
        if by_task:
            continue
        try:
            source.acknowledge(epoch, at)
        except Exception:
            logger.exception("epoch %d could not be acknowledged", epoch)


def _decision(offsets: OffsetLog, epoch: int) -> Manifest | None:
    """Return the manifest of a logged epoch; None if it has none."""
    entry = offsets.get(epoch)
    return None if entry is None else manifest_of(entry, join_url(offsets.url, str(epoch)), epoch)


def _commit_before(resources: EpochResources, version: int) -> CommitEntry:
    """Return the commit that names the files of a version, if they have unique ids."""
    if resources.commit_version < 2 or version == 0:
        return CommitEntry()
    return resources.commits.get(version - 1) or CommitEntry()


def _floor(
    resources: EpochResources, logs: recovery.Logs, first_epoch: int, chain: StateChain | None
) -> int:
    """Return the lowest version that a retained entry in the log starts from."""
    published = first_epoch if chain is None else chain.published
    if not resources.is_stateful or not logs.offset_ids:
        return published
    oldest = oldest_retained(logs.offset_ids, first_epoch, resources.min_batches_to_retain)
    manifest = _decision(resources.offsets, oldest)
    if manifest is None or manifest.chain is None:
        return min(published, oldest + 1)
    return min(published, manifest.chain.published)


def _ask_sink(resources: EpochResources, logs: recovery.Logs) -> bool:
    epoch = recovery.open_epoch(logs)
    if epoch is None or epoch not in logs.entries:
        return False
    path = join_url(resources.offsets.url, str(epoch))
    is_ours = manifest_of(logs.entries[epoch], path, epoch) is not None
    return (resources.sink.decides or not is_ours) and resources.sink.decided(epoch)


def _has_output(resources: EpochResources, plan: recovery.RecoveryPlan) -> bool:
    if plan.planned is None or not resources.query.has_state_ids or resources.sink.decides:
        return False
    return resources.sink.decided(plan.first_epoch)


def _is_settled(query: recovery.QueryShape, plan: recovery.RecoveryPlan) -> bool:
    if query.moves == "turn" or plan.base is None:
        return plan.unit is None
    possible_ms = watermark_of(plan.highs, query.delays_ms, plan.late_ms, query.policy(plan.base))
    return max(possible_ms, plan.watermark_ms) <= plan.late_ms


def _start_positions(
    resources: EpochResources, plan: recovery.RecoveryPlan, offsets: Sequence[str | None]
) -> tuple[Positions, ...]:
    if plan.base is None:
        return tuple(source.initial() for source in resources.sources)
    exact = (None,) * len(offsets) if plan.manifest is None else plan.manifest.positions
    return tuple(map(_start_of, resources.sources, offsets, exact))


def _start_of(source: LoggedSource, offset: str | None, exact: Positions | None) -> Positions:
    if offset is None:
        return source.initial() if exact is None else exact
    if exact is not None and source.offset(exact) == offset:
        return exact
    # The offset differs from the manifest: Spark wrote the entry, or an edit moved the query to
    # another offset. The offset counts.
    return source.resume(offset)
