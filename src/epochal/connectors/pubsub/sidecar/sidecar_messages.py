"""What driver, sidecars and workers of a Pub/Sub source say to each other. A closed set; pure data.

Three conversations: sidecars speak to the driver's endpoint (`grants` decides), sidecars fetch rows
from each other, and a task's `read` speaks to the sidecar of its executor over a unix socket.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from epochal.rpc.envelope import EndpointType, RpcAddress

Slots: TypeAlias = tuple[tuple[int, int], ...]


class Place(msgspec.Struct, frozen=True, array_like=True):
    """Where somebody listens, and the keys that are let in."""

    host: str
    port: int
    server_public_key: bytes
    client_public_key: bytes
    client_secret_key: bytes

    def address(self) -> RpcAddress:
        return RpcAddress(
            self.host,
            self.port,
            self.server_public_key,
            self.client_public_key,
            self.client_secret_key,
        )


def place_of(address: RpcAddress) -> Place:
    return Place(
        address.host,
        address.port,
        address.server_public_key,
        address.client_public_key,
        address.client_secret_key,
    )


class State(msgspec.Struct, frozen=True, array_like=True, tag="state"):
    """How a sidecar stands; of two, the one with the greater `number` is newer. -> Settle"""

    sidecar: str
    place: Place
    number: int
    buffered_rows: int
    buffered_bytes: int
    held_rows: int
    idle_s: float
    failure: str = ""


class Claim(msgspec.Struct, frozen=True, array_like=True, tag="claim"):
    """Whose is this partition? -> Grant"""

    sidecar: str
    batch: int
    partition: int
    buffered: int


class Unreachable(msgspec.Struct, frozen=True, array_like=True, tag="unreachable"):
    """The holder of a partition gives no rows: they will be missing. -> Done"""

    batch: int
    partition: int
    holder: str


class Filled(msgspec.Struct, frozen=True, array_like=True, tag="filled"):
    """A partition has so many rows now, which leaves the sidecar in `state`. -> Done"""

    state: State
    batch: int
    partition: int
    rows: int
    copied: bool = False
    """Whether a copy of it is on disk, by whomever."""


class Admit(msgspec.Struct, frozen=True, array_like=True, tag="admit"):
    """Which of these messages did the query have before? -> Known"""

    batch: int
    partition: int
    ids: list[str]


class Loaded(msgspec.Struct, frozen=True, array_like=True, tag="loaded"):
    """A partition was read from its copy, which has these messages. -> Done"""

    sidecar: str
    batch: int
    partition: int
    ids: list[str]


class Confirmed(msgspec.Struct, frozen=True, array_like=True, tag="confirmed"):
    """These partitions are acknowledged; Pub/Sub refused so many messages. -> Done"""

    sidecar: str
    slots: Slots
    refused: int


class Goodbye(msgspec.Struct, frozen=True, array_like=True, tag="goodbye"):
    """A sidecar gives everything back and leaves. -> Done"""

    sidecar: str


class Settle(msgspec.Struct, frozen=True, array_like=True, tag="settle"):
    """Acknowledge `acks`, give back all else up to batch `committed`. Also pushed."""

    committed: int
    acks: Slots


class Grant(msgspec.Struct, frozen=True, array_like=True, tag="grant"):
    """Fill it yourself if it is yours; else fetch it from `place`; else it is empty."""

    mine: bool
    holder: str = ""
    place: Place | None = None
    why: str = ""


class Known(msgspec.Struct, frozen=True, array_like=True, tag="known"):
    """Positions of messages that are on disk already, and of those that may come to be."""

    repeated: list[int]
    unsure: list[int]


class Done(msgspec.Struct, frozen=True, array_like=True, tag="done"):
    """Noted."""


class Farewell(msgspec.Struct, frozen=True, array_like=True, tag="farewell"):
    """The query ends: give everything back. Pushed."""


DriverRequest: TypeAlias = (
    State | Claim | Unreachable | Filled | Admit | Loaded | Confirmed | Goodbye
)
DriverReply: TypeAlias = Settle | Grant | Known | Done | Farewell
DRIVER = EndpointType("PubSubGrants", DriverRequest, DriverReply)


class Fetch(msgspec.Struct, frozen=True, array_like=True, tag="fetch"):
    """Give me the rows of a partition that is yours, from byte `start` on. -> Piece"""

    batch: int
    partition: int
    rows: int
    size: int
    start: int


class Piece(msgspec.Struct, frozen=True, array_like=True, tag="piece"):
    """Some bytes of an Arrow stream."""

    total: int
    data: bytes


PEER = EndpointType("PubSubRows", Fetch, Piece)


class Reading(msgspec.Struct, frozen=True):
    """All that the reader of a partition needs to know; what Spark's InputPartition carries."""

    run: str
    """Of the query: a sidecar keeps runs apart, also of one subscription."""
    driver: Place
    options: dict[str, str]
    batch: int
    partition: int
    rows: int
    size: int
    wait_s: float
    """How long to wait for a first row."""
    old_before_us: int
    """What was published later does not keep `availableNow` waiting; 0 if all does."""
    committed: int
    pending: dict[str, Slots]
    """Acknowledgements without confirmation, by sidecar: should the driver's word be lost."""
    copies: str = ""
    """Where copies of partitions are written before they are read; empty if they are not."""


class LogLine(msgspec.Struct, frozen=True, array_like=True):
    """What a sidecar logged, for the log of the executor."""

    level: int
    logger: str
    text: str


class Read(msgspec.Struct, frozen=True, array_like=True):
    """The sidecar's answer to a Reading; an Arrow stream follows unless there is a failure."""

    failure: str
    log: list[LogLine]
