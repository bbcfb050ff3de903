"""The engine's world with Pub/Sub as its source: leases run out, messages come again anywhere.

Driver, tasks, operators and the source's reader are the engine's own; Pub/Sub is the embedded
server's broker, without a network. Time passes, so leases end that nobody extends; a run that
dies leaves its leases behind; between two runs more time passes than anything is remembered by the
clock. What is acknowledged must be in a committed epoch at that moment, whatever happens later.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from tests.simulation.engine_world import World
from tests.simulation.simulated_driver import SimulatedDriver, visible

from epochal.connectors.contract import Positions, ReaderFactory
from epochal.connectors.pubsub.continuous_pubsub import PubSubReader, PubSubSource
from epochal.connectors.pubsub.protobuf_wire import encode_field
from epochal.connectors.pubsub.pubsub_options import SourceOptions
from epochal.connectors.pubsub.pull.ack_leases import Span
from epochal.connectors.pubsub.pull.received_rows import ACK_SCHEMA, MESSAGE_SCHEMA
from epochal.connectors.pubsub.pull.streaming_pull import Pulled
from epochal.connectors.pubsub.server.broker import Draft, MessageBroker
from epochal.connectors.pubsub.server.parts import SECOND_US, Settings
from epochal.continuous.operators.contract import Moment
from epochal.continuous.operators.deduplication import DropRepeatsSpec
from epochal.continuous.plan.stages import Branch, QueryPlan, SourcePlan, StagePlan, Target
from epochal.testing.clock import ManualClock
from epochal.testing.driver.processes import CHECKPOINT
from epochal.testing.driver.staged_sink import StagingWriter

TOPIC, SUBSCRIPTION = "projects/p/topics/t", "projects/p/subscriptions/s"
OPTIONS = SourceOptions(subscription_id=SUBSCRIPTION, emulator_host="nowhere", project_id="p")
IDS = pa.schema([("message_id", pa.string())])
DEADLINE_S, WINDOW_MS = 4, 60_000
FOR_EVER_US = 10**18


class PubSub:
    """The service: what it holds, and what was acknowledged when."""

    def __init__(self, count: int, clock: ManualClock, chance: random.Random) -> None:
        self.clock, self.chance = clock, chance
        self.broker = MessageBroker()
        self.broker.create_topic(TOPIC, b"")
        settings = Settings(ack_deadline_us=DEADLINE_S * SECOND_US, retention_us=FOR_EVER_US)
        self.subscription = self.broker.create_subscription(SUBSCRIPTION, TOPIC, b"", settings)
        drafts: list[Draft] = [(encode_field(1, b"%d" % number), "", {}) for number in range(count)]
        self.ids = [str(each) for each in self.broker.publish(TOPIC, drafts, self.now_us())]
        self.on_ack: Any = None

    def now_us(self) -> int:
        return self.clock.now_ms() * 1000

    def pull(self, most: int) -> list[Any]:
        self.broker.tick(self.now_us())
        return self.subscription.deliveries.pull(most, self.now_us())

    def ack(self, entries: Iterable[tuple[int, str]]) -> None:
        for serial, message_id in entries:
            self.on_ack(message_id)
            if self.chance.random() < 0.4:  # most never arrive
                self.subscription.deliveries.ack([serial], self.now_us())


class FakePuller:
    """One stream of the service."""

    def __init__(self, service: PubSub) -> None:
        self._service = service
        self._entries: list[tuple[int, str]] = []

    def take(self, max_rows: int) -> Pulled | None:
        if self._service.chance.random() < 0.6:
            return None  # it is under way
        entries = self._service.pull(min(max_rows, self._service.chance.randint(1, 3)))
        if not entries:
            return None
        first = len(self._entries)
        self._entries += [(each.serial, str(each.message.number)) for each in entries]
        rows = [
            {"message_id": name, "data": b"", "ack_id": ""} for _, name in self._entries[first:]
        ]
        return Pulled(first, pa.RecordBatch.from_pylist(rows, ACK_SCHEMA))

    def ack(self, spans: Sequence[Span]) -> Future[dict[int, str]]:
        self._service.ack(self._entries[number] for span in spans for number in range(*span))
        done: Future[dict[int, str]] = Future()
        done.set_result({})
        return done

    def close(self, *, timeout_s: float) -> None: ...


@dataclass(frozen=True, slots=True)
class FakeReaders(ReaderFactory):
    service: PubSub

    def open(self, partitions: Positions) -> PubSubReader:
        pullers: dict[str, Any] = {name: FakePuller(self.service) for name in partitions}
        return PubSubReader(OPTIONS, None, partitions, pullers)


class FakeSource(PubSubSource):
    """The driver's side, which here asks nobody."""

    def __init__(self, partitions: int) -> None:
        super().__init__(OPTIONS, None, parallelism=partitions)

    def initial(self) -> Positions:
        return {str(number): "0" for number in range(self._partitions)}

    def discover(self, known: Positions) -> Positions:
        return {}


@dataclass(frozen=True, slots=True)
class KeepIds:
    def open(self) -> KeepIds:
        return self

    def process(self, batch: pa.RecordBatch, at: Moment) -> Iterable[pa.RecordBatch]:
        return (batch.select(["message_id"]),)


class PubSubWorld(World):
    """Exactly once, or at least once, as the seed has it."""

    counts_totals = False
    bounds = (None,)  # Pub/Sub cannot tell where an epoch must end
    service: PubSub
    exactly_once: bool

    def _plan(self) -> QueryPlan:
        shape = self.shape
        self.exactly_once = self.chance.random() < 0.8
        self.service = PubSub(shape.rows * shape.partitions, self.clock, self.chance)
        self.service.on_ack = self._note_ack
        repeats = DropRepeatsSpec(("message_id",), MESSAGE_SCHEMA, WINDOW_MS, "publish_time")
        last = StagePlan(0, repeats, (MESSAGE_SCHEMA,), (KeepIds(),), Target(1))
        once = self.exactly_once
        source = SourcePlan(
            FakeReaders(self.service),
            MESSAGE_SCHEMA,
            (Branch(() if once else (KeepIds(),), Target(0)),),
            acknowledges_in_tasks=True,
        )
        return QueryPlan(
            sources=(source,),
            watermarks=(),
            stages=(last,) if once else (),
            writers=StagingWriter(self.truth, None),  # type: ignore[arg-type]
            output_schema=IDS,
            state_partitions=shape.state_partitions,
        )

    def _sources(self) -> list[Any]:
        return [FakeSource(self.shape.partitions)]

    def _pass_time(self, driver: SimulatedDriver) -> None:
        super()._pass_time(driver)
        self.service.broker.tick(self.service.now_us())

    def _output(self) -> list[str]:
        """What is shown by epochs that are committed."""
        names = [int(info.name) for info in self.truth.list(f"{CHECKPOINT}/commits")]
        newest = max(names, default=-1)  # older ones are purged in time
        shown = visible(self.truth)
        return [row[0] for epoch, rows in shown.items() if epoch <= newest for row in rows]

    def _note_ack(self, message_id: str) -> None:
        if message_id not in self._output():
            self.wrong.append(f"message {message_id} was acknowledged before it was committed")

    def _all_committed(self) -> bool:
        return set(self._output()) == set(self.service.ids)

    def _check(self) -> None:
        found, sent = Counter(self._output()), Counter(self.service.ids)
        if sent - found:
            self.wrong.append(f"lost {sorted(sent - found)}")
        if found - sent and self.exactly_once:
            self.wrong.append(f"twice {sorted(found - sent)}")
