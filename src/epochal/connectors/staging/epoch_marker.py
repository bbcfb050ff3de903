"""Decides what the marker of a query's transactions means. Pure.

A sink that decides writes one transaction per epoch. It contains all output and a marker with the
epoch's number: an offset in a Kafka consumer group, or a row of a PostgreSQL table. Both become
visible or neither, so the marker shows whether an epoch is decided:

    marker >= epoch     its transaction was committed
    marker <  epoch     it was not, and never will be: the reader has fenced the writer

An epoch without output needs no transaction. Its entry in the offset log decides it, as with any
other sink. That is sound: no row could become visible twice, and two attempts cannot both create
the entry, because the later one adopts an entry that it finds.

In output mode complete an epoch's rows are the whole result and replace the table's. No rows are
then an output too: the table becomes empty. But an epoch in which no task had input has none,
whatever its rows are: the table has that result already.

Note: a missing marker does not mean that nothing was written. A marker is written before the first
epoch. If the log has epochs of this sink but there is no marker, then it was lost (Kafka's group
offsets expire, tables are dropped), or the query writes to another place than before.

Dead letters travel to the driver beside the message of the sink's writer: a task that has some
wraps the message in an envelope, which also names the file with the letters. So the decision of an
epoch covers its letters, and a restart finishes both. A task without letters reports the sink's
message unchanged.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

NO_EPOCH = -1
"""The epoch of the marker that is written before the first epoch."""
LETTERS_MAGIC = b"EDL1"


@dataclass(frozen=True, slots=True)
class MarkedOutput:
    """A kind of output: what identifies its messages, and the words of its refusals."""

    magic: bytes
    """How the messages of tasks begin. Part of the log's format."""
    noun: str
    """What the rows are written to: `topic`."""
    how_lost: str
    """Why a marker can be missing, as a clause that follows "either"."""
    how_behind: str
    """Why a marker can be older than the log."""
    how_to_look: str
    """How to see which epochs the output contains."""


class Staged(msgspec.Struct, frozen=True, array_like=True):
    """A task's report about its output of one epoch."""

    epoch: int
    attempt: int
    task: int
    rows: int
    inline: bytes = b""
    """The rows themselves, unless they are in a file."""
    name: str = ""
    checksum: int = 0
    replaces: bool | None = None
    """In output mode complete: whether the task had input; None if rows do not replace others."""


class StagedDeadLetters(msgspec.Struct, frozen=True, array_like=True):
    """A file with the letters of one task and epoch."""

    name: str
    checksum: int
    letters: int


class Envelope(msgspec.Struct, frozen=True, array_like=True):
    """A task's report of an epoch that has letters."""

    message: bytes
    """What the sink's own writer returned."""
    staged: StagedDeadLetters


@dataclass(frozen=True, slots=True)
class Marker:
    """The newest epoch that was committed, and a fingerprint of its tasks' messages."""

    epoch: int
    token: str = ""
    """Empty if no epoch was written with the marker: at the very start, or by resetMarker."""


@dataclass(frozen=True, slots=True)
class LoggedEpoch:
    """An epoch of this sink in the offset log."""

    epoch: int
    writes: bool
    """Whether it changes what is in the sink."""
    token: str


@dataclass(frozen=True, slots=True)
class History:
    """The contents of the logs.

    Read it after the marker: an entry is written before its transaction.
    """

    newest: int
    """The newest epoch with an offset entry, `NO_EPOCH` if there is none."""
    committed: int
    """The newest epoch with a commit entry, `NO_EPOCH` if there is none."""
    epochs: tuple[LoggedEpoch, ...]
    """Epochs of this sink that are not older than the marker's, newest first."""


@dataclass(frozen=True, slots=True)
class Refuse:
    """Stop with this reason."""

    reason: str
    remedy: str


def pack(staged: Staged, magic: bytes) -> bytes:
    return magic + msgspec.msgpack.encode(staged)


def unpack(message: bytes, magic: bytes) -> Staged | None:
    """The report in a task's message; None for a message of another sink."""
    if not message.startswith(magic):
        return None
    try:
        return msgspec.msgpack.decode(message[len(magic) :], type=Staged)
    except msgspec.DecodeError:
        return None


def with_input(magic: bytes, message: bytes, had_input: bool) -> bytes:
    """The message of a task in output mode complete, which tells whether the task had input."""
    staged = unpack(message, magic)
    assert staged is not None, "the message of another sink"
    return pack(msgspec.structs.replace(staged, replaces=had_input), magic)


def wrap_letters(message: bytes, staged: StagedDeadLetters) -> bytes:
    """The message that a task reports if it has letters."""
    return LETTERS_MAGIC + msgspec.msgpack.encode(Envelope(message, staged))


def unwrap_letters(message: bytes) -> tuple[bytes, StagedDeadLetters | None]:
    """The sink's own message, and the file with letters if there is one."""
    if not message.startswith(LETTERS_MAGIC):
        return message, None
    envelope = msgspec.msgpack.decode(message[len(LETTERS_MAGIC) :], type=Envelope)
    return envelope.message, envelope.staged


def sink_messages(messages: Sequence[bytes]) -> tuple[bytes, ...]:
    """The messages of the sink's own writers, without envelopes."""
    return tuple(unwrap_letters(message)[0] for message in messages)


def has_output(staged: Sequence[Staged]) -> bool:
    """Whether an epoch changes what is in the sink."""
    flags = [report.replaces for report in staged if report.replaces is not None]
    return any(flags) if flags else any(report.rows for report in staged)


def token_of(messages: Sequence[bytes]) -> str:
    """A fingerprint of an epoch's messages, which contain the attempt and the rows or files."""
    digest = hashlib.sha256()
    for message in messages:
        # With its length: otherwise other messages could make the same bytes.
        digest.update(len(message).to_bytes(8))
        digest.update(message)
    return digest.hexdigest()[:32]


def logged_epoch(epoch: int, messages: Sequence[bytes], magic: bytes) -> LoggedEpoch | None:
    """The epoch in a manifest; None if another sink wrote it."""
    messages = sink_messages(messages)  # the log has them with the names of dead letters
    staged = [report for message in messages if (report := unpack(message, magic)) is not None]
    if not staged or len(staged) < len(messages):
        return None
    return LoggedEpoch(epoch, has_output(staged), token_of(messages))


def check_marker(
    marker: Marker | None, history: History, reset_to: int | None, output: MarkedOutput
) -> Marker | Refuse | None:
    """The marker to write before the first epoch; None if the one there matches the log."""
    check = _compare(marker, history, output)
    if isinstance(check, Refuse) and reset_to is not None and reset_to == history.committed:
        return Marker(reset_to)
    return check


def _compare(
    marker: Marker | None, history: History, output: MarkedOutput
) -> Marker | Refuse | None:
    remedy = _remedy(history, output)
    if marker is None:
        if history.epochs:
            return Refuse(
                f"it is missing, but the log has epoch {history.epochs[0].epoch} of this sink. "
                f"Either {output.how_lost}",
                remedy,
            )
        return Marker(history.committed)
    if marker.epoch > history.newest:
        return Refuse(
            f"it shows that epoch {marker.epoch} is in the {output.noun}, but the newest epoch in "
            f"the log is {_epoch_text(history.newest)}. The checkpoint was rewound or restored "
            f"from a copy",
            remedy,
        )
    for epoch in history.epochs:
        # An epoch that is logged and not committed may be missing: recovery decides about it. One
        # without output may be missing too, because it moves no marker.
        if marker.epoch < epoch.epoch <= history.committed and epoch.writes:
            return Refuse(
                f"it shows that epoch {_epoch_text(marker.epoch)} is the newest in the "
                f"{output.noun}, but epoch {epoch.epoch} is committed in the log. "
                f"{output.how_behind}",
                remedy,
            )
        # An empty token matches any: the first marker has none, one that was reset has none, and a
        # token may not be known any more.
        if epoch.epoch == marker.epoch and marker.token not in ("", epoch.token):
            return Refuse(
                f"it was written with an epoch {marker.epoch} that differs from the one in the "
                f"log. Two copies of one checkpoint write to the {output.noun}, or the checkpoint "
                f"was rewound",
                remedy,
            )
    return None


def is_decided(marker: Marker, epoch: int, entry: LoggedEpoch | None) -> bool:
    """Whether `epoch` must be finished; `entry` is its entry in the log."""
    if marker.epoch >= epoch:
        return True
    return entry is not None and not entry.writes


def plan_commit(
    marker: Marker, epoch: int, messages: Sequence[bytes], output: MarkedOutput, *, refresh: bool
) -> Marker | Refuse | None:
    """The marker to write with all rows of an epoch; `refresh` writes it even without output.

    None if there is nothing to do: the epoch is already visible, or has no output.
    """
    entry = logged_epoch(epoch, messages, output.magic)
    if entry is None:
        return Refuse(
            f"epoch {epoch} was prepared by another sink",
            "Start the query with its previous sink, stop it, then change the sink.",
        )
    if marker.epoch == epoch and marker.token == entry.token:
        return None  # the same attempt and rows, so it is the same epoch and not only its number
    if marker.epoch >= epoch:
        return Refuse(
            f"it shows that epoch {marker.epoch} is in the {output.noun}, with other rows than "
            f"those to be committed as epoch {epoch}",
            "Another run uses the same checkpoint or a copy of it. Stop one of them.",
        )
    if not entry.writes and not refresh:
        return None
    return Marker(epoch, entry.token)


def _epoch_text(epoch: int) -> str:
    return "none" if epoch == NO_EPOCH else str(epoch)


def _remedy(history: History, output: MarkedOutput) -> str:
    return (
        f"Check which epochs the {output.noun} contains ({output.how_to_look}). Then start with "
        f"option resetMarker={history.committed}: the sink then assumes that epochs up to "
        f"{history.committed} were written, and no later ones. The option works only while "
        f"{history.committed} is the newest commit."
    )
