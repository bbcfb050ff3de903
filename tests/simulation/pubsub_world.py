"""A world for the Pub/Sub source: a subscription with leases, sidecars with reservoirs, and a Spark
that retries, speculates, crashes and forgets. Only grants and reservoirs are real.

`founding` turns the rules into those of the design that this source replaces: a reservoir keyed by
batch, filled again by every attempt, acknowledged as a whole when the batch commits.

`ExactWorld` is the same with copies: batches can be replayed, messages are told apart. What a
sidecar does in its `_copied` is what `sidecar_feed` does, in the same order. A sidecar of a run
that is over may still write the copy it was about to write: those are the ghosts.
"""

from __future__ import annotations

import itertools
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import numpy as np
import pyarrow as pa

from epochal.connectors.pubsub.pull.received_rows import MESSAGE_SCHEMA
from epochal.connectors.pubsub.sidecar.copies import Seen
from epochal.connectors.pubsub.sidecar.grants import Grants
from epochal.connectors.pubsub.sidecar.reservoir import Reservoir, SpillFiles
from epochal.connectors.pubsub.sidecar.sidecar_messages import Grant, Settle, SidecarReport, Slot


class Crash(Exception):
    """The driver dies here."""


@dataclass(slots=True)
class Subscription:
    """Delivers until acknowledged; a lease that ends lets the message come again."""

    waiting: deque[int]
    leased: dict[int, int] = field(default_factory=dict)
    acked: set[int] = field(default_factory=set)
    leases: itertools.count[int] = field(default_factory=itertools.count)

    def pull(self, most: int) -> list[tuple[int, int]]:
        found: list[tuple[int, int]] = []
        while self.waiting and len(found) < most:
            lease, message = next(self.leases), self.waiting.popleft()
            self.leased[lease] = message
            found.append((lease, message))
        return found

    def ack(self, lease: int) -> None:
        message = self.leased.pop(lease, None)
        if message is not None:
            self.acked.add(message)

    def end(self, lease: int) -> None:
        """By a nack or by time."""
        message = self.leased.pop(lease, None)
        if message is not None and message not in self.acked:
            self.waiting.append(message)

    @property
    def done(self) -> bool:
        return not self.waiting and not self.leased


@dataclass(slots=True)
class Sidecar:
    name: str
    subscription: Subscription
    founding: bool
    reservoir: Reservoir = field(
        default_factory=lambda: Reservoir(memory_bytes=1 << 40, store=SpillFiles(Path("unused")))
    )
    leases: list[int] = field(default_factory=list)
    fills: itertools.count[int] = field(default_factory=itertools.count)

    def pull(self, most: int) -> None:
        pulled = self.subscription.pull(most)
        rows = [
            {"message_id": str(message), "data": b"", "attributes": []} for _, message in pulled
        ]
        if rows:
            self.reservoir.add(
                pa.RecordBatch.from_pylist(rows, schema=MESSAGE_SCHEMA), len(self.leases)
            )
            self.leases += [lease for lease, _ in pulled]

    def report(self) -> SidecarReport:
        return SidecarReport(self.reservoir.buffered_rows, 0, self.reservoir.held_rows)

    def fill(self, slot: Slot, rows: int) -> Slot:
        if self.founding:
            slot = slot[0], next(self.fills)
        if not self.reservoir.has(slot):
            self.reservoir.fill(slot, rows=rows, size=1 << 40)
        return slot

    def rows(self, slot: Slot) -> list[int]:
        batches = self.reservoir.read(slot)
        return [int(str(i)) for batch in batches for i in batch.column("message_id").to_pylist()]

    def settle(self, orders: Settle) -> tuple[Slot, ...]:
        for slot in self.reservoir.slots(orders.committed):
            if slot in orders.acks or self.founding:
                for number in self.reservoir.settle(slot):
                    self.subscription.ack(self.leases[number])
            else:
                for number in self.reservoir.give_back(slot):
                    self.subscription.end(self.leases[number])
        return orders.acks

    def die(self) -> None:
        """Its leases end with time."""
        for number in self.reservoir.drain():
            self.subscription.end(self.leases[number])


@dataclass(slots=True)
class Disk:
    """What outlives a driver: Spark's logs, and a sink that takes a batch once."""

    offsets: list[int] = field(default_factory=list)
    commits: list[int] = field(default_factory=list)
    sink: dict[int, list[int]] = field(default_factory=dict)


@dataclass(slots=True)
class World:
    rng: Random
    subscription: Subscription
    founding: bool = False
    calm: bool = False
    """Nothing goes wrong any more."""
    disk: Disk = field(default_factory=Disk)
    now_s: float = 0.0
    sidecars: dict[int, Sidecar] = field(default_factory=dict)
    names: itertools.count[int] = field(default_factory=itertools.count)
    grants: Grants = field(default_factory=lambda: Grants(partitions=1, rows_per_partition=1))

    EXECUTORS = 3

    def happens(self, chance: float) -> bool:
        return not self.calm and self.rng.random() < chance

    def run(self, batches: int) -> None:
        """One life of a driver: replay what was begun, then go on until it crashes or is idle."""
        rng = self.rng
        for sidecar in self.sidecars.values():
            sidecar.die()
        self.sidecars.clear()
        self.grants = Grants(partitions=rng.randint(1, 3), rows_per_partition=rng.randint(1, 20))
        offset = self.disk.offsets[-1] if self.disk.offsets else 0
        if offset not in self.disk.commits and offset:
            self.finish(offset)
        for _ in range(batches):
            self.tick()
            plan = self.grants.next_batch(offset, self.now_s)
            if plan is None:
                continue
            self.disk.offsets.append(plan.batch)
            self.crash(0.02)
            self.settle(self.grants.commit(offset))
            self.crash(0.02)
            offset = plan.batch
            self.finish(offset)

    def finish(self, batch: int) -> None:
        plan = self.grants.planned(batch)
        output = []
        for partition in range(plan.partitions if plan else 0):
            output += self.task((batch, partition))
            self.crash(0.02)
        self.disk.sink.setdefault(batch, output)
        self.crash(0.05)
        self.disk.commits.append(batch)
        self.crash(0.02)

    def task(self, slot: Slot) -> list[int]:
        """Run a task until an attempt ends well; which attempt's rows count is anybody's guess."""
        while True:
            rows = self.read(slot)
            if self.happens(0.2):
                self.tick()
                continue
            if self.happens(0.2):
                for _ in range(self.rng.randint(0, 3)):
                    self.tick()
                other = self.read(slot)
                rows = self.rng.choice((rows, other))
            return rows

    def read(self, slot: Slot) -> list[int]:
        executor = self.rng.randrange(self.EXECUTORS)
        if executor not in self.sidecars:
            self.start(executor)
        sidecar = self.sidecars[executor]
        plan = self.grants.planned(slot[0])
        assert plan is not None
        if self.founding:
            return sidecar.rows(sidecar.fill(slot, plan.rows))
        match self.grants.claim(slot, sidecar.name, sidecar.reservoir.buffered_rows, self.now_s):
            case Grant(mine=True):
                return self.filled(sidecar, slot, plan.rows)
            case Grant(holder=holder) if holder:
                return self.fetched(slot, holder, plan.rows)
        return []

    def filled(self, sidecar: Sidecar, slot: Slot, rows: int) -> list[int]:
        sidecar.fill(slot, rows)
        self.grants.filled(slot, sidecar.name, len(sidecar.reservoir.numbers(slot)))
        return sidecar.rows(slot)

    def fetched(self, slot: Slot, holder: str, rows: int) -> list[int]:
        found = [sidecar for sidecar in self.sidecars.values() if sidecar.name == holder]
        if not found or self.happens(0.1):
            self.grants.unreachable(slot, holder)
            return []
        if found[0].reservoir.has(slot):
            return found[0].rows(slot)
        match self.grants.claim(slot, holder, found[0].reservoir.buffered_rows, self.now_s):
            case Grant(mine=True):
                return self.filled(found[0], slot, rows)
        return []

    def start(self, executor: int) -> None:
        name = f"sidecar-{next(self.names)}"
        self.sidecars[executor] = Sidecar(name, self.subscription, self.founding)
        self.grants.heard(name, SidecarReport(), self.now_s)

    def tick(self) -> None:
        """Time passes: messages come, leases end, sidecars report, and some die."""
        self.now_s += self.rng.random() * (2.0 if self.happens(0.9) or self.calm else 15.0)
        for executor, sidecar in list(self.sidecars.items()):
            if self.happens(0.04):
                del self.sidecars[executor]
                sidecar.die()
                if self.happens(0.5):
                    self.grants.gone(sidecar.name)
                continue
            sidecar.pull(self.rng.randint(0, 15))
            if not self.happens(0.1):
                orders = self.grants.heard(sidecar.name, sidecar.report(), self.now_s)
                self.obey(sidecar, orders)
        if self.happens(0.1) and self.subscription.leased:
            self.subscription.end(self.rng.choice(list(self.subscription.leased)))

    def settle(self, concerned: list[str]) -> None:
        for sidecar in self.sidecars.values():
            if sidecar.name in concerned and not self.happens(0.3):
                self.obey(sidecar, self.grants.orders(sidecar.name))

    def obey(self, sidecar: Sidecar, orders: Settle) -> None:
        done = sidecar.settle(orders)
        if not self.happens(0.2):
            self.grants.confirmed(sidecar.name, done)

    def crash(self, chance: float) -> None:
        if self.happens(chance):
            raise Crash

    @property
    def output(self) -> list[int]:
        return [message for batch in self.disk.commits for message in self.disk.sink[batch]]


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
