"""An epoch's time, divided into the steps of the protocol: for timelines and traces. Pure.

    cut       the marker travels and is aligned       from the announcement of the end
    state     tasks write what the epoch changed
    prepare   tasks stage the epoch's output
    log       the decision: the offset entry          with the wait for the epochs before
    commit    sink, published state, commit entry
    ack       sources are told                        after the commit

What a reader would get wrong: tasks work side by side, so `state` and `prepare` are the slowest
task's, and `cut` is what is left until all were done. The phases follow each other without gaps
from the cut to the commit, whatever the clocks say.
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
    """Since the Unix epoch."""
    took_ms: float

    @property
    def end_ms(self) -> float:
        return self.start_ms + self.took_ms


def phases_of(epoch: EpochDone) -> tuple[Phase, ...]:
    """The phases of an epoch in their order; the last only if it is known."""
    whole = max(0.0, epoch.prepare_ms)
    # Measured on other hosts and in other threads: never more than there was.
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
