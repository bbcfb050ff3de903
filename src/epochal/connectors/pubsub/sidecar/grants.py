"""Decides which sidecar fills which partition of a micro-batch, and what it acknowledges. Pure.

Spark may read a partition again: in a retry, a speculative task, or a second action of
`foreachBatch`. Pub/Sub cannot deliver the same messages again on demand. So each (batch, partition)
is granted to one sidecar, once. Every later reader gets the rows that this sidecar holds, or none.
Different rows would be lost: a sink that already has the batch skips them, and they would still be
acknowledged with it.

Note: a void partition was not necessarily read as empty. One reader may have failed to reach the
holder while another reader got the rows. Nothing is lost, because a void partition is given back to
Pub/Sub when its batch commits, so its messages are redelivered.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from epochal.connectors.pubsub.sidecar.sidecar_messages import Grant, Settle, SidecarReport, Slot

SILENT_S = 10.0
"""A sidecar without a report for this long counts as dead. It reports twice a second."""

FORGOTTEN_S = 600.0
"""A sidecar without a report for this long is forgotten: its leases (at most 600 s) have ended."""

BOOTSTRAP_EVERY_S = 5.0
"""How often to run an empty batch just to start sidecars, while none is up."""

FLUSH_AFTER_S = 1.0
"""How long a stream must be idle before an empty batch is run to make Spark commit the last one."""


class Reason(StrEnum):
    """Why a batch is run."""

    BOOTSTRAP = "no sidecar is up"
    DATA = "rows are buffered"
    FLUSH = "the last batch is not committed"
    REFRESH = "the progress shows messages that are acknowledged by now"


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """One batch: the number of its partitions, and the most rows that each may have."""

    batch: int
    partitions: int
    rows: int
    reason: Reason


@dataclass(slots=True)
class _Sidecar:
    heard_s: float
    report: SidecarReport
    promised: int = 0
    """How many of its buffered rows the partitions of the newest batch will take."""


@dataclass(slots=True)
class _Partition:
    holder: str | None = None
    void: bool = False
    rows: int | None = None
    """As reported by its holder; None until then."""


@dataclass(slots=True)
class _Batch:
    plan: BatchPlan
    partitions: list[_Partition] = field(default_factory=list)

    @property
    def may_have_rows(self) -> bool:
        return any(p.holder is not None and p.rows != 0 for p in self.partitions)


class Grants:
    """The driver's view of one run of a query. Each method handles one message, at time `now_s`."""

    def __init__(self, *, partitions: int, rows_per_partition: int) -> None:
        self.committed = -1
        """The newest batch that Spark has committed."""
        self.latest = 0
        """The offset of the newest batch planned by this or an earlier run."""
        self._partitions = partitions
        self._rows = rows_per_partition
        self._sidecars: dict[str, _Sidecar] = {}
        self._batches: dict[int, _Batch] = {}
        self._unconfirmed: dict[Slot, str] = {}
        self._shown, self._is_shown = 0, True
        self._bootstrapped_s: float | None = None
        self._busy_s: float | None = None

    def heard(self, sidecar: str, report: SidecarReport, now_s: float) -> Settle:
        """Take the report of a sidecar, new or known; return what it has to settle."""
        state = self._sidecars.get(sidecar)
        if state is None:
            self._sidecars[sidecar] = _Sidecar(now_s, report)
        else:
            state.heard_s, state.report = now_s, report
        return self.orders(sidecar)

    def gone(self, sidecar: str) -> None:
        """Remove a sidecar that has left. Pub/Sub redelivers the messages it held."""
        self._sidecars.pop(sidecar, None)
        self._unconfirmed = {s: who for s, who in self._unconfirmed.items() if who != sidecar}

    def live(self, now_s: float) -> list[str]:
        for name, sidecar in list(self._sidecars.items()):
            if now_s - sidecar.heard_s > FORGOTTEN_S:
                self.gone(name)
        return [name for name in self._sidecars if self._is_live(name, now_s)]

    def see(self, offset: int) -> None:
        """Continue counting from an offset that Spark names."""
        self.latest = max(self.latest, offset)

    def next_batch(self, start: int, now_s: float, *, draining: bool = False) -> BatchPlan | None:
        """Plan a batch after `start`, if there is a reason for one; keep the plan until its commit.

        `draining` means that `availableNow` has waited long enough: a flush need not wait.
        """
        self.see(start)
        reason = self._reason(now_s, draining)
        if reason is None:
            return None
        self.latest += 1
        live = self.live(now_s)
        buffered = sum(self._sidecars[name].report.buffered_rows for name in live)
        share = -(-buffered // self._partitions) if reason is Reason.DATA else self._rows
        empty = reason in (Reason.FLUSH, Reason.REFRESH)
        count = 0 if empty else self._partitions
        plan = BatchPlan(self.latest, count, min(share, self._rows), reason)
        self._batches[plan.batch] = _Batch(plan, [_Partition() for _ in range(count)])
        for sidecar in self._sidecars.values():
            sidecar.promised = 0
        if reason is Reason.BOOTSTRAP:
            self._bootstrapped_s = now_s
        if not empty:
            self._busy_s = now_s
        self._is_shown = False
        return plan

    def show(self, backlog: int) -> None:
        """The progress of the newest batch shows this backlog; it stays until there is another."""
        if not self._is_shown:
            self._shown, self._is_shown = backlog, True

    def planned(self, batch: int) -> BatchPlan | None:
        """Return the plan of a batch, or None if an earlier run planned it: it must stay empty."""
        state = self._batches.get(batch)
        return None if state is None else state.plan

    def claim(self, slot: Slot, sidecar: str, buffered: int, now_s: float) -> Grant:
        """Decide which sidecar fills a partition; `sidecar`, which asks, has `buffered` rows.

        The caller adds the holder's `place`.
        """
        state = self._batches.get(slot[0])
        if state is None or not 0 <= slot[1] < len(state.partitions):
            why = f"batch {slot[0]} is committed, or was planned by another run"
            return Grant(mine=False, why=why)
        partition = state.partitions[slot[1]]
        if partition.void:
            return Grant(mine=False, why=f"its holder {partition.holder} was lost")
        if partition.holder is None:
            partition.holder = self._choose(sidecar, buffered, state.plan.rows, now_s)
        if partition.holder == sidecar:
            return Grant(mine=True)
        if self._is_live(partition.holder, now_s):
            return Grant(mine=False, holder=partition.holder)
        # Once void, always void: a reader may already have read the partition as empty.
        partition.void = True
        return Grant(mine=False, why=f"its holder {partition.holder} is silent")

    def unreachable(self, slot: Slot, holder: str) -> None:
        """A reader could not fetch the rows from their holder and reads the partition as empty."""
        state = self._batches.get(slot[0])
        if state is not None and state.partitions[slot[1]].holder == holder:
            state.partitions[slot[1]].void = True

    def filled(self, slot: Slot, sidecar: str, rows: int) -> None:
        """A holder reports how many rows a partition has."""
        state = self._batches.get(slot[0])
        if state is not None and state.partitions[slot[1]].holder == sidecar:
            state.partitions[slot[1]].rows = rows

    def commit(self, end: int) -> list[str]:
        """Spark has committed all batches up to `end`; return the sidecars that now have orders."""
        self.see(end)
        self.committed = max(self.committed, end)
        concerned: dict[str, None] = {}
        for batch in [number for number in self._batches if number <= end]:
            for number, partition in enumerate(self._batches.pop(batch).partitions):
                # A holder that has left cannot acknowledge: Pub/Sub redelivers its messages.
                if partition.holder in self._sidecars:
                    concerned[partition.holder] = None
                    if not partition.void:
                        self._unconfirmed[(batch, number)] = partition.holder
        return list(concerned)

    def orders(self, sidecar: str) -> Settle:
        mine = tuple(slot for slot, who in self._unconfirmed.items() if who == sidecar)
        return Settle(self.committed, mine)

    def pending(self) -> dict[str, tuple[Slot, ...]]:
        """Return all unconfirmed acknowledgements, for the partitions of the next batch."""
        by_sidecar: dict[str, list[Slot]] = {}
        for slot, sidecar in self._unconfirmed.items():
            by_sidecar.setdefault(sidecar, []).append(slot)
        return {sidecar: tuple(slots) for sidecar, slots in by_sidecar.items()}

    def confirmed(self, sidecar: str, slots: tuple[Slot, ...]) -> None:
        """A sidecar has acknowledged these partitions."""
        for slot in slots:
            if self._unconfirmed.get(slot) == sidecar:
                del self._unconfirmed[slot]

    @property
    def all_confirmed(self) -> bool:
        return not self._unconfirmed

    @property
    def rows_uncommitted(self) -> bool:
        """Whether a finished batch may have rows that Spark has not committed."""
        return any(batch.may_have_rows for batch in self._batches.values())

    def buffered(self, now_s: float) -> SidecarReport:
        """Return the sum of the live sidecars' reports; `idle_s` is their minimum."""
        reports = [self._sidecars[name].report for name in self.live(now_s)]
        return SidecarReport(
            sum(report.buffered_rows for report in reports),
            sum(report.buffered_bytes for report in reports),
            sum(report.held_rows for report in reports),
            min((report.idle_s for report in reports), default=0.0),
        )

    def _reason(self, now_s: float, draining: bool) -> Reason | None:
        live = self.live(now_s)
        if any(self._sidecars[name].report.buffered_rows for name in live):
            return Reason.DATA
        waited = self._bootstrapped_s is None or now_s - self._bootstrapped_s >= BOOTSTRAP_EVERY_S
        if not live and waited:
            return Reason.BOOTSTRAP
        idle = self._busy_s is None or now_s - self._busy_s >= FLUSH_AFTER_S
        if self.rows_uncommitted and (idle or draining):
            return Reason.FLUSH
        now = self.buffered(now_s)
        if self._shown and not now.buffered_rows + now.held_rows and (idle or draining):
            return Reason.REFRESH
        return None

    def _choose(self, asking: str, buffered: int, rows: int, now_s: float) -> str:
        """Choose the sidecar that asks, unless it has no rows and another has some to spare."""
        chosen = asking
        if not buffered:
            left = {
                name: self._sidecars[name].report.buffered_rows - self._sidecars[name].promised
                for name in self.live(now_s)
                if name != asking
            }
            richest = max(left, key=lambda name: left[name], default=asking)
            if left.get(richest, 0) > 0:
                chosen = richest
        if chosen in self._sidecars:
            self._sidecars[chosen].promised += rows
        return chosen

    def _is_live(self, sidecar: str | None, now_s: float) -> bool:
        state = None if sidecar is None else self._sidecars.get(sidecar)
        return state is not None and now_s - state.heard_s <= SILENT_S
