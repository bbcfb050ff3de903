"""The messages between the driver, the sidecars and the workers of a Pub/Sub source. Pure data.

There are three protocols. Sidecars send requests to the driver's endpoint, where `grants` decides.
Sidecars fetch rows from each other. A task's `read` asks the sidecar of its executor over a unix
socket. The arrow in a docstring names the reply.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from epochal.rpc.envelope import EndpointType, RpcAddress

Slots: TypeAlias = tuple[tuple[int, int], ...]


class Place(msgspec.Struct, frozen=True, array_like=True):
    """The address of an RPC server, with the keys that it accepts."""

    host: str
    port: int
    server_public_key: bytes
    client_public_key: bytes
    client_secret_key: bytes

    def __repr__(self) -> str:  # without its keys: reprs end up in logs
        return f"Place({self.host!r}, {self.port})"

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
    """A sidecar's report. Of two, the one with the greater `number` is newer. -> Settle"""

    sidecar: str
    place: Place
    number: int
    buffered_rows: int
    buffered_bytes: int
    held_rows: int
    idle_s: float
    failure: str = ""
    degraded_s: float = 0.0
    """How long it has not been able to reach Pub/Sub; 0 if it can."""


class Claim(msgspec.Struct, frozen=True, array_like=True, tag="claim"):
    """Ask which sidecar fills a partition; the sender has `buffered` rows. -> Grant"""

    sidecar: str
    batch: int
    partition: int
    buffered: int


class Unreachable(msgspec.Struct, frozen=True, array_like=True, tag="unreachable"):
    """The holder of a partition does not answer, so it is read as empty. -> Done"""

    batch: int
    partition: int
    holder: str


class Filled(msgspec.Struct, frozen=True, array_like=True, tag="filled"):
    """A partition was filled with `rows` rows; `state` is the sidecar's state after it. -> Done"""

    state: State
    batch: int
    partition: int
    rows: int
    copied: bool = False
    """Whether a copy of it is on disk."""


class Admit(msgspec.Struct, frozen=True, array_like=True, tag="admit"):
    """Ask which of these messages the query has seen before. -> Known"""

    batch: int
    partition: int
    keys: list[str]


class Loaded(msgspec.Struct, frozen=True, array_like=True, tag="loaded"):
    """A partition was read from its copy, which contains these messages. -> Done"""

    sidecar: str
    batch: int
    partition: int
    keys: list[str]


class Confirmed(msgspec.Struct, frozen=True, array_like=True, tag="confirmed"):
    """These partitions are acknowledged; Pub/Sub refused `refused` of their messages. -> Done"""

    sidecar: str
    slots: Slots
    refused: int


class Goodbye(msgspec.Struct, frozen=True, array_like=True, tag="goodbye"):
    """A sidecar gives all messages back and exits. -> Done"""

    sidecar: str


class Settle(msgspec.Struct, frozen=True, array_like=True, tag="settle"):
    """Acknowledge `acks`, and give back everything else up to batch `committed`. Also pushed."""

    committed: int
    acks: Slots


class Grant(msgspec.Struct, frozen=True, array_like=True, tag="grant"):
    """The reply to Claim: fill the partition if `mine`, else fetch it from `place`.

    Without a `place` the partition is empty; `why` is the reason.
    """

    mine: bool
    holder: str = ""
    place: Place | None = None
    why: str = ""


class Known(msgspec.Struct, frozen=True, array_like=True, tag="known"):
    """The positions of messages that are on disk already, and of those that may be soon."""

    repeated: list[int]
    unsure: list[int]


class Done(msgspec.Struct, frozen=True, array_like=True, tag="done"):
    """The request was handled; there is nothing to return."""


class Farewell(msgspec.Struct, frozen=True, array_like=True, tag="farewell"):
    """The query has ended: give everything back. Pushed."""


DriverRequest: TypeAlias = (
    State | Claim | Unreachable | Filled | Admit | Loaded | Confirmed | Goodbye
)
DriverReply: TypeAlias = Settle | Grant | Known | Done | Farewell
DRIVER = EndpointType("PubSubGrants", DriverRequest, DriverReply)


class Fetch(msgspec.Struct, frozen=True, array_like=True, tag="fetch"):
    """Ask another sidecar for the rows of a partition it holds, from byte `start`. -> Piece"""

    batch: int
    partition: int
    rows: int
    size: int
    start: int


class Piece(msgspec.Struct, frozen=True, array_like=True, tag="piece"):
    """A part of an Arrow stream that has `total` bytes."""

    total: int
    data: bytes


PEER = EndpointType("PubSubRows", Fetch, Piece)


class Reading(msgspec.Struct, frozen=True):
    """All that the reader of a partition needs to know. Spark's InputPartition holds it."""

    run: str
    """The query's run. A sidecar keeps runs separate, even if they read the same subscription."""
    driver: Place
    options: dict[str, str]
    batch: int
    partition: int
    rows: int
    size: int
    wait_s: float
    """How long to wait for a first row."""
    old_before_us: int
    """`availableNow` does not wait for messages published later than this; 0 for no limit."""
    committed: int
    pending: dict[str, Slots]
    """Unconfirmed acknowledgements by sidecar, repeated here in case a push was lost."""
    copies: str = ""
    """Where copies of partitions are written before they are read; empty to write none."""

    def __repr__(self) -> str:  # without its options, which may have credentials
        return f"Reading({self.run!r}, batch={self.batch}, partition={self.partition})"


class LogLine(msgspec.Struct, frozen=True, array_like=True):
    """A log record of a sidecar, to be repeated in the executor's log."""

    level: int
    logger: str
    text: str


class Read(msgspec.Struct, frozen=True, array_like=True):
    """The sidecar's reply to a Reading. An Arrow stream follows, unless there is a failure."""

    failure: str
    log: list[LogLine]
