"""Decides what the marker of a query's Kafka transactions means. Pure.

The sink writes one transaction per epoch: all output, and a marker, the offset `epoch + 1` in a
consumer group of the query's own. Kafka makes both visible or neither, so the marker says whether
an epoch is decided:

    marker >= epoch     its transaction was committed
    marker <  epoch     it was not, and never will be: whoever asks has shut out the writer first

An epoch without rows needs no transaction. Its decision is the entry in the offset log, as with
any other sink, so it counts as decided as soon as its entry is there. That is sound because there
is nothing that could be visible twice, and because two attempts cannot both create the entry: the
later one adopts what it finds there.

What a reader would get wrong: a marker that is missing does not mean "nothing was written". One is
written before the first epoch, so its absence beside a log of this sink's epochs means that Kafka
has forgotten it (offsets of groups expire, topics are deleted), or that this is another cluster.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import msgspec

MAGIC = b"EKS1"
NONE = -1
"""The epoch of a marker before the first."""


class Staged(msgspec.Struct, frozen=True, array_like=True):
    """What one task says of its output of one epoch."""

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
    """The newest epoch that was committed, and a fingerprint of what its tasks said."""

    epoch: int
    token: str = ""
    """Empty if the marker was set without an epoch: at the very start, or by hand."""


@dataclass(frozen=True, slots=True)
class Logged:
    """An epoch in the offset log, as far as this sink had a part in it."""

    epoch: int
    rows: int
    token: str


@dataclass(frozen=True, slots=True)
class History:
    """What the logs hold; read after the marker, since an entry is older than its transaction."""

    newest: int
    """The newest epoch with an offset entry, `NONE` if there is none."""
    committed: int
    """The newest with a commit entry, `NONE` if there is none."""
    epochs: tuple[Logged, ...]
    """Those of this sink, not older than the marker's, newest first."""


@dataclass(frozen=True, slots=True)
class GoOn:
    """The marker fits the log."""

    marker: Marker


@dataclass(frozen=True, slots=True)
class Begin:
    """Write this marker before the first epoch."""

    marker: Marker


@dataclass(frozen=True, slots=True)
class Refuse:
    """Stop, and say why."""

    reason: str
    remedy: str


Stand: TypeAlias = GoOn | Begin | Refuse


@dataclass(frozen=True, slots=True)
class Write:
    """Commit a transaction with all rows and this marker."""

    marker: Marker


@dataclass(frozen=True, slots=True)
class Done:
    """Nothing is to be done: the epoch is visible, or has nothing to show."""


CommitPlan: TypeAlias = Write | Done | Refuse


def pack(staged: Staged) -> bytes:
    """The message that a task reports."""
    return MAGIC + msgspec.msgpack.encode(staged)


def unpack(message: bytes) -> Staged | None:
    """What a task said; None for a message of another sink."""
    if not message.startswith(MAGIC):
        return None
    try:
        return msgspec.msgpack.decode(message[len(MAGIC) :], type=Staged)
    except msgspec.DecodeError:
        return None


def token_of(messages: Sequence[bytes]) -> str:
    """A fingerprint of an epoch's messages: they name the attempt, and the rows or their files."""
    found = hashlib.sha256()
    for message in messages:
        found.update(len(message).to_bytes(8))
        found.update(message)
    return found.hexdigest()[:32]


def logged(epoch: int, messages: Sequence[bytes]) -> Logged | None:
    """What a manifest says of an epoch; None if it was another sink's."""
    staged = [unpack(message) for message in messages]
    if not staged or None in staged:
        return None
    return Logged(epoch, sum(each.rows for each in staged if each), token_of(messages))


def stand(marker: Marker | None, history: History, reset_to: int | None) -> Stand:
    """Whether an attempt may go on from this marker and this log."""
    found = _judged(marker, history)
    if isinstance(found, Refuse) and reset_to is not None and reset_to == history.committed:
        return Begin(Marker(reset_to))
    return found


def _judged(marker: Marker | None, history: History) -> Stand:
    if marker is None:
        if history.epochs:
            return Refuse(
                f"it is missing, and the log has epoch {history.epochs[0].epoch} of this sink. "
                f"Kafka forgets offsets of a group that was idle for offsets.retention.minutes (7 "
                f"days unless set) and those of a deleted topic; or the brokers are not those "
                f"that the query wrote to",
                _remedy(history),
            )
        return Begin(Marker(history.committed))
    if marker.epoch > history.newest:
        return Refuse(
            f"it says that epoch {marker.epoch} is in the topic, and the newest in the log is "
            f"{_told(history.newest)}. The checkpoint was rewound or restored from a copy",
            _remedy(history),
        )
    for epoch in history.epochs:
        if marker.epoch < epoch.epoch <= history.committed and epoch.rows:
            return Refuse(
                f"it says that epoch {_told(marker.epoch)} is the newest in the topic, and the log "
                f"has epoch {epoch.epoch} as committed. The group was reset, or the brokers are "
                f"not those that the query wrote to",
                _remedy(history),
            )
        if epoch.epoch == marker.epoch and marker.token not in ("", epoch.token):
            return Refuse(
                f"it was written with another epoch {marker.epoch} than the one in the log. Two "
                f"copies of one checkpoint write to the topic, or it was rewound",
                _remedy(history),
            )
    return GoOn(marker)


def is_decided(marker: Marker, epoch: int, entry: Logged | None) -> bool:
    """Whether `epoch` is to be finished; `entry` is what the log says of it."""
    if marker.epoch >= epoch:
        return True
    return entry is not None and entry.rows == 0


def plan_commit(
    marker: Marker, epoch: int, messages: Sequence[bytes], *, refresh: bool
) -> CommitPlan:
    """What to do to make an epoch visible; `refresh` if the marker is about to be forgotten."""
    entry = logged(epoch, messages)
    if entry is None:
        return Refuse(
            f"epoch {epoch} was prepared by another sink",
            "Start the query with the sink that it had, let it stop, then change the sink.",
        )
    if marker.epoch == epoch and marker.token == entry.token:
        return Done()
    if marker.epoch >= epoch:
        return Refuse(
            f"it says that epoch {marker.epoch} is in the topic, with other rows than those of "
            f"epoch {epoch} that are to be committed",
            "Another run writes with the same checkpoint or a copy of it: stop one of them.",
        )
    if entry.rows == 0 and not refresh:
        return Done()
    return Write(Marker(epoch, entry.token))


def _told(epoch: int) -> str:
    return "none" if epoch == NONE else str(epoch)


def _remedy(history: History) -> str:
    return (
        f"Look what the topic holds (a consumer with isolation.level=read_committed); then start "
        f"with option resetMarker={history.committed}, which takes all that the log has as "
        f"committed for written, and all after it for not. It works only as long as "
        f"{history.committed} is the newest commit."
    )
