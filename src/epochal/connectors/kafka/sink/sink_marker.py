"""Decides what the marker of a query's Kafka transactions means. Pure.

The sink writes one transaction per epoch. It contains all output and a marker: the offset
`epoch + 1` in a consumer group that belongs to the query. Kafka makes both visible or neither, so
the marker shows whether an epoch is decided:

    marker >= epoch     its transaction was committed
    marker <  epoch     it was not, and never will be: the reader has fenced the writer

An epoch without rows needs no transaction. Its entry in the offset log decides it, as with any
other sink. That is sound: no row could become visible twice, and two attempts cannot both create
the entry, because the later one adopts an entry that it finds.

Note: a missing marker does not mean that nothing was written. A marker is written before the first
epoch. If the log has epochs of this sink but there is no marker, then Kafka has forgotten it (group
offsets expire, topics are deleted), or this is another cluster.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import msgspec

from epochal.connectors.letters.letter_rules import sink_messages

MAGIC = b"EKS1"
NO_EPOCH = -1
"""The epoch of the marker that is written before the first epoch."""


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
    rows: int
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
class Continue:
    """The marker matches the log."""

    marker: Marker


@dataclass(frozen=True, slots=True)
class Begin:
    """Write this marker before the first epoch."""

    marker: Marker


@dataclass(frozen=True, slots=True)
class Refuse:
    """Stop with this reason."""

    reason: str
    remedy: str


MarkerCheck: TypeAlias = Continue | Begin | Refuse


@dataclass(frozen=True, slots=True)
class Write:
    """Commit a transaction with all rows and this marker."""

    marker: Marker


@dataclass(frozen=True, slots=True)
class Done:
    """There is nothing to do: the epoch is already visible, or has no rows."""


CommitPlan: TypeAlias = Write | Done | Refuse


def pack(staged: Staged) -> bytes:
    """The message that a task reports."""
    return MAGIC + msgspec.msgpack.encode(staged)


def unpack(message: bytes) -> Staged | None:
    """The report in a task's message; None for a message of another sink."""
    if not message.startswith(MAGIC):
        return None
    try:
        return msgspec.msgpack.decode(message[len(MAGIC) :], type=Staged)
    except msgspec.DecodeError:
        return None


def token_of(messages: Sequence[bytes]) -> str:
    """A fingerprint of an epoch's messages, which contain the attempt and the rows or files."""
    found = hashlib.sha256()
    for message in messages:
        found.update(len(message).to_bytes(8))
        found.update(message)
    return found.hexdigest()[:32]


def logged_epoch(epoch: int, messages: Sequence[bytes]) -> LoggedEpoch | None:
    """The epoch in a manifest; None if another sink wrote it."""
    messages = sink_messages(messages)  # the log has them with the names of dead letters
    staged = [unpack(message) for message in messages]
    if not staged or None in staged:
        return None
    return LoggedEpoch(epoch, sum(each.rows for each in staged if each), token_of(messages))


def check_marker(marker: Marker | None, history: History, reset_to: int | None) -> MarkerCheck:
    """Whether an attempt may continue from this marker and this log."""
    check = _compare(marker, history)
    if isinstance(check, Refuse) and reset_to is not None and reset_to == history.committed:
        return Begin(Marker(reset_to))
    return check


def _compare(marker: Marker | None, history: History) -> MarkerCheck:
    if marker is None:
        if history.epochs:
            return Refuse(
                f"it is missing, but the log has epoch {history.epochs[0].epoch} of this sink. "
                f"Either Kafka has forgotten it, because the group was idle for longer than "
                f"offsets.retention.minutes (7 days by default) or the topic was deleted, or these "
                f"are not the brokers that the query wrote to",
                _remedy(history),
            )
        return Begin(Marker(history.committed))
    if marker.epoch > history.newest:
        return Refuse(
            f"it shows that epoch {marker.epoch} is in the topic, but the newest epoch in the log "
            f"is {_epoch_text(history.newest)}. The checkpoint was rewound or restored from a copy",
            _remedy(history),
        )
    for epoch in history.epochs:
        if marker.epoch < epoch.epoch <= history.committed and epoch.rows:
            return Refuse(
                f"it shows that epoch {_epoch_text(marker.epoch)} is the newest in the topic, but "
                f"epoch {epoch.epoch} is committed in the log. The group was reset, or these are "
                f"not the brokers that the query wrote to",
                _remedy(history),
            )
        if epoch.epoch == marker.epoch and marker.token not in ("", epoch.token):
            return Refuse(
                f"it was written with an epoch {marker.epoch} that differs from the one in the "
                f"log. Two copies of one checkpoint write to the topic, or the checkpoint was "
                f"rewound",
                _remedy(history),
            )
    return Continue(marker)


def is_decided(marker: Marker, epoch: int, entry: LoggedEpoch | None) -> bool:
    """Whether `epoch` must be finished; `entry` is its entry in the log."""
    if marker.epoch >= epoch:
        return True
    return entry is not None and entry.rows == 0


def plan_commit(
    marker: Marker, epoch: int, messages: Sequence[bytes], *, refresh: bool
) -> CommitPlan:
    """How to make an epoch visible; `refresh` renews the marker before Kafka forgets it."""
    entry = logged_epoch(epoch, messages)
    if entry is None:
        return Refuse(
            f"epoch {epoch} was prepared by another sink",
            "Start the query with its previous sink, stop it, then change the sink.",
        )
    if marker.epoch == epoch and marker.token == entry.token:
        return Done()
    if marker.epoch >= epoch:
        return Refuse(
            f"it shows that epoch {marker.epoch} is in the topic, with other rows than those to be "
            f"committed as epoch {epoch}",
            "Another run uses the same checkpoint or a copy of it. Stop one of them.",
        )
    if entry.rows == 0 and not refresh:
        return Done()
    return Write(Marker(epoch, entry.token))


def _epoch_text(epoch: int) -> str:
    return "none" if epoch == NO_EPOCH else str(epoch)


def _remedy(history: History) -> str:
    return (
        f"Check which epochs the topic contains (with a consumer that has "
        f"isolation.level=read_committed). Then start with option resetMarker={history.committed}: "
        f"the sink then assumes that epochs up to {history.committed} were written, and no later "
        f"ones. The option works only while {history.committed} is the newest commit."
    )
