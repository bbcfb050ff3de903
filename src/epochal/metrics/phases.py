"""Divides the time of an epoch into the steps of the protocol, for timelines and traces. Pure.

    cut       markers travel through the plan and are aligned; starts when the cut is announced
    state     tasks write the state that the epoch changed
    prepare   tasks stage the epoch's output
    log       the offset entry is written, after waiting for earlier epochs
    commit    the sink commits, the state is published, the commit entry is written
    ack       sources are acknowledged, after the commit

The phases follow each other without gaps from the cut to the commit, even if clocks disagree.

Note: Tasks work in parallel, so `state` and `prepare` are the times of the slowest task, and `cut`
is the rest of the time until all tasks were done.
"""

from __future__ import annotations

from dataclasses import dataclass

from epochal.metrics.run_records import EpochDone

PHASES = ("cut", "state", "prepare", "log", "commit", "ack")


@dataclass(frozen=True, slots=True)
class Phase:
    """One step of one epoch."""

    name: str
    start_ms: float
    """In milliseconds since the Unix epoch."""
    took_ms: float

    @property
    def end_ms(self) -> float:
        return self.start_ms + self.took_ms


def phases_of(epoch: EpochDone) -> tuple[Phase, ...]:
    """The phases of an epoch in order; `ack` only if its time is known."""
    whole = max(0.0, epoch.prepare_ms)
    # These times come from other hosts and threads, so none may exceed the time it is part of.
    state = min(max(0.0, epoch.state_ms), whole)
    stage = min(max(0.0, epoch.stage_ms), whole - state)
    total = max(0.0, float(epoch.committed_ms - epoch.cut_ms), whole)
    log = min(max(0.0, epoch.queue_ms) + max(0.0, epoch.wal_ms), total - whole)
    took = [whole - state - stage, state, stage, log, total - whole - log]
    if epoch.ack_ms is not None:
        took.append(max(0.0, epoch.ack_ms))
    found: list[Phase] = []
    at = float(epoch.cut_ms)
    for name, length in zip(PHASES, took, strict=False):
        found.append(Phase(name, at, length))
        at += length
    return tuple(found)
