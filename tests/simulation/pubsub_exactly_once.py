"""The world of `pubsub_world` with copies: batches can be replayed, messages are told apart.

What a sidecar does here in `_copied` is what `sidecar_feed` does, in the same order. A sidecar of a
run that is over may still write the copy it was about to write: those are the ghosts.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from tests.simulation.pubsub_world import Sidecar, World

from epochal.connectors.pubsub.sidecar.copies import Seen
from epochal.connectors.pubsub.sidecar.sidecar_messages import Grant, Slot


@dataclass(slots=True)
class ExactWorld(World):
    copies: dict[Slot, list[int]] = field(default_factory=dict)
    """Outlives every run; the first to write an entry decides it."""
    counts: dict[int, int] = field(default_factory=dict)
    """How many partitions a batch has: part of its offset."""
    seen: Seen = field(default_factory=Seen)
    ghosts: list[tuple[Slot, list[int]]] = field(default_factory=list)

    def run(self, batches: int) -> None:
        self.seen = Seen()
        for slot, ids in self.copies.items():
            self.seen.load(slot, [str(each) for each in ids])
        World.run(self, batches)

    def finish(self, batch: int) -> None:
        plan = self.grants.planned(batch)
        if plan is not None:
            self.counts[batch] = plan.partitions
            World.finish(self, batch)
            return
        output = []
        for partition in range(self.counts.get(batch, 0)):
            self.haunt()
            output += self.from_copy((batch, partition))
            self.crash(0.05)
        self.disk.sink.setdefault(batch, output)
        self.crash(0.05)
        self.disk.commits.append(batch)

    def tick(self) -> None:
        World.tick(self)
        self.haunt()

    def haunt(self) -> None:
        if self.ghosts and self.happens(0.5):
            slot, ids = self.ghosts.pop(self.rng.randrange(len(self.ghosts)))
            self.copies.setdefault(slot, ids)

    def settle(self, concerned: list[str]) -> None:
        World.settle(self, concerned)
        self.seen.commit(self.grants.committed)

    def read(self, slot: Slot) -> list[int]:
        plan = self.grants.planned(slot[0])
        assert plan is not None
        self.counts[slot[0]] = plan.partitions
        executor = self.rng.randrange(self.EXECUTORS)
        if executor not in self.sidecars:
            self.start(executor)
        sidecar = self.sidecars[executor]
        if sidecar.reservoir.has(slot):
            return sidecar.rows(slot)
        match self.grants.claim(slot, sidecar.name, sidecar.reservoir.buffered_rows, self.now_s):
            case Grant(mine=True):
                return self.filled(sidecar, slot, plan.rows)
            case Grant(holder=holder) if holder:
                found = [each for each in self.sidecars.values() if each.name == holder]
                if found and found[0].reservoir.has(slot) and not self.happens(0.1):
                    return found[0].rows(slot)
        return self.from_copy(slot)

    def filled(self, sidecar: Sidecar, slot: Slot, rows: int) -> list[int]:
        if sidecar.reservoir.has(slot):
            return sidecar.rows(slot)
        sidecar.fill(slot, rows)
        ids = sidecar.rows(slot)
        repeated, unsure = self.seen.admit(slot, [str(each) for each in ids])
        back = sidecar.reservoir.numbers(slot)[np.array(unsure, np.int64)]
        sidecar.reservoir.thin(slot, np.array(repeated, np.int64), np.array(unsure, np.int64))
        for number in back:
            sidecar.subscription.end(sidecar.leases[number])
        ids = sidecar.rows(slot)
        self.meanwhile(sidecar, slot)
        if self.happens(0.2):
            self.ghosts.append((slot, ids))
            for executor in [n for n, each in self.sidecars.items() if each is sidecar]:
                del self.sidecars[executor]
            sidecar.die()
            return self.read(slot)
        self.crash(0.02)
        if slot in self.copies:
            for number in sidecar.reservoir.give_back(slot):
                sidecar.subscription.end(sidecar.leases[number])
            return self.from_copy(slot)
        self.copies[slot] = ids
        self.crash(0.02)
        self.grants.filled(slot, sidecar.name, len(ids) or len(repeated))
        self.seen.settled(slot, copied=True)
        return ids

    def meanwhile(self, sidecar: Sidecar, slot: Slot) -> None:
        """Leases of what is about to be copied end, and another task gets the messages."""
        if not self.happens(0.3):
            return
        for number in sidecar.reservoir.numbers(slot):
            sidecar.subscription.end(sidecar.leases[number])
        for each in self.sidecars.values():
            if each is not sidecar:
                each.pull(50)
        for partition in range(slot[1] + 1, self.counts[slot[0]]):
            self.read((slot[0], partition))

    def from_copy(self, slot: Slot) -> list[int]:
        ids = self.copies.setdefault(slot, [])
        self.seen.load(slot, [str(each) for each in ids])
        return ids
