"""The messages between the driver, the sidecars and the workers of a Pub/Sub source.

There are three protocols. Sidecars send requests to the driver's endpoint, where `grants` decides.
Sidecars fetch rows from each other. A task's `read` asks the sidecar of its executor over a unix
socket: `send` and `receive` write a length of four bytes, then MessagePack. The arrow in a
docstring names the reply.
"""

from __future__ import annotations

import struct
from io import BufferedIOBase
from typing import TypeAlias, TypeVar

import msgspec

from epochal.connectors.pubsub.pubsub_options import SourceOptions
from epochal.errors import PubSubReaderError
from epochal.rpc.envelope import EndpointType, RpcAddress

Slot: TypeAlias = tuple[int, int]
"""A batch and one of its partitions."""


class SidecarReport(msgspec.Struct, frozen=True, array_like=True):
    """What a sidecar holds."""

    buffered_rows: int = 0
    buffered_bytes: int = 0
    held_rows: int = 0
    """Rows given to batches that are not settled yet."""
    idle_s: float = 0.0
    """Time since the last message that `availableNow` waits for, or since the stream was opened."""


class State(msgspec.Struct, frozen=True, array_like=True, tag="state"):
    """A sidecar and its report. Of two, the one with the greater `number` is newer. -> Settle"""

    sidecar: str
    place: RpcAddress
    number: int
    report: SidecarReport
    failure: str = ""
    degraded_s: float = 0.0
    """How long it has not been able to reach Pub/Sub; 0 if it can."""


class ClaimPartition(msgspec.Struct, frozen=True, array_like=True, tag="claim"):
    """Ask which sidecar fills a partition; the sender has `buffered` rows. -> Grant"""

    sidecar: str
    slot: Slot
    buffered: int


class Unreachable(msgspec.Struct, frozen=True, array_like=True, tag="unreachable"):
    """The holder of a partition does not answer, so it is read as empty. -> Handled"""

    slot: Slot
    holder: str


class Filled(msgspec.Struct, frozen=True, array_like=True, tag="filled"):
    """A partition was filled with `rows` rows; `state` is the sidecar's after it. -> Handled"""

    state: State
    slot: Slot
    rows: int
    copied: bool = False
    """Whether a copy of it is on disk."""


class Admit(msgspec.Struct, frozen=True, array_like=True, tag="admit"):
    """Ask which of these messages the query has seen before. -> Known"""

    slot: Slot
    keys: list[str]


class Loaded(msgspec.Struct, frozen=True, array_like=True, tag="loaded"):
    """A partition was read from its copy, which contains these messages. -> Handled"""

    sidecar: str
    slot: Slot
    keys: list[str]


class Confirmed(msgspec.Struct, frozen=True, array_like=True, tag="confirmed"):
    """These partitions are acknowledged; Pub/Sub refused `refused` of their messages. -> Handled"""

    sidecar: str
    slots: tuple[Slot, ...]
    refused: int


class Goodbye(msgspec.Struct, frozen=True, array_like=True, tag="goodbye"):
    """A sidecar gives all messages back and exits. -> Handled"""

    sidecar: str


class Settle(msgspec.Struct, frozen=True, array_like=True, tag="settle"):
    """What a sidecar must settle among the partitions it holds of batches up to `committed`.

    It acknowledges those in `acks` and gives the others back to Pub/Sub. Orders are pushed too, and
    repeated until they are confirmed.
    """

    committed: int
    acks: tuple[Slot, ...]


class Grant(msgspec.Struct, frozen=True, array_like=True, tag="grant"):
    """The reply to ClaimPartition: fill the partition if `mine`, else fetch it from its `holder`.

    Without a `place` the partition is empty: its holder was lost or its batch is over; `why` is the
    reason.
    """

    mine: bool
    holder: str = ""
    place: RpcAddress | None = None
    why: str = ""


class Known(msgspec.Struct, frozen=True, array_like=True, tag="known"):
    """The positions of messages that are on disk already, and of those that may be soon."""

    repeated: list[int]
    unsure: list[int]


class Handled(msgspec.Struct, frozen=True, array_like=True, tag="done"):
    """The request was handled; there is nothing to return."""


class Farewell(msgspec.Struct, frozen=True, array_like=True, tag="farewell"):
    """The query has ended: give everything back. Pushed."""


DriverRequest: TypeAlias = (
    State | ClaimPartition | Unreachable | Filled | Admit | Loaded | Confirmed | Goodbye
)
DriverReply: TypeAlias = Settle | Grant | Known | Handled | Farewell
DRIVER = EndpointType("PubSubGrants", DriverRequest, DriverReply)


class Fetch(msgspec.Struct, frozen=True, array_like=True, tag="fetch"):
    """Ask another sidecar for the rows of a partition it holds, from byte `start`. -> Piece"""

    slot: Slot
    rows: int
    size: int
    start: int


class Piece(msgspec.Struct, frozen=True, array_like=True, tag="piece"):
    """A part of an Arrow stream that has `total` bytes."""

    total: int
    data: bytes


PEER = EndpointType("PubSubRows", Fetch, Piece)


class PartitionReading(msgspec.Struct, frozen=True):
    """All that the reader of a partition needs to know. Spark's InputPartition holds it."""

    run: str
    """The query's run. A sidecar keeps runs separate, even if they read the same subscription."""
    driver: RpcAddress
    options: SourceOptions
    batch: int
    partition: int
    rows: int = 0
    size: int = 0
    wait_s: float = 0.0
    """How long to wait for a first row."""
    old_before_us: int = 0
    """`availableNow` does not wait for messages published later than this; 0 for no limit."""
    committed: int = -1
    pending: dict[str, tuple[Slot, ...]] = {}
    """Unconfirmed acknowledgements by sidecar, repeated here in case a push was lost."""
    copies: str = ""
    """Where copies of partitions are written before they are read; empty to write none."""

    @property
    def slot(self) -> Slot:
        return self.batch, self.partition

    def __repr__(self) -> str:  # without its options, which may have credentials
        return f"PartitionReading({self.run!r}, batch={self.batch}, partition={self.partition})"


class LogLine(msgspec.Struct, frozen=True, array_like=True):
    """A log record of a sidecar, to be repeated in the executor's log."""

    level: int
    logger: str
    text: str


class Read(msgspec.Struct, frozen=True, array_like=True):
    """The sidecar's reply to a PartitionReading. An Arrow stream follows if nothing failed."""

    failure: str
    log: list[LogLine]


T = TypeVar("T")
MAX_BYTES = 16 << 20
_LENGTH = struct.Struct(">I")


def send(file: BufferedIOBase, message: object) -> None:
    data = msgspec.msgpack.encode(message)
    file.write(_LENGTH.pack(len(data)) + data)
    file.flush()


def receive(file: BufferedIOBase, kind: type[T]) -> T | None:
    """Read one message; None if the other side has closed the socket."""
    head = file.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (size,) = _LENGTH.unpack(head)
    if size > MAX_BYTES:
        raise PubSubReaderError(
            f"A message on a sidecar's socket has {size} bytes, but the most is {MAX_BYTES}: the "
            f"other side is not one of Epochal's processes, or has another version."
        )
    data = file.read(size)
    if len(data) < size:
        return None
    return msgspec.msgpack.decode(data, type=kind)
