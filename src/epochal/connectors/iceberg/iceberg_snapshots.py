"""Decides what the snapshots of an Iceberg table mean: epochs, and which have expired. Pure.

Every epoch with rows is one commit to the catalog. It adds a snapshot and sets a table property,
both or neither:

    the snapshot's summary     Spark's own keys for the query's id and the epoch, so that Spark and
                               Epochal skip what the other has written
    the property               epoch, snapshot and sequence number; it outlives the snapshot, which
                               may be expired

Whichever of the two has the higher sequence number counts. A snapshot is newer than the property if
Spark ran the query in between.

A snapshot is kept if a rule keeps it: the number or the age that the options name, a tag, the end
of a branch. Spark looks for its keys from the newest snapshot back, parent by parent, and finds
nothing if one snapshot in that chain is expired. So the chain from the end of the query's branch
back to the query's newest epoch is always kept.

Note: snapshots on no branch may be staged by someone who will publish them. They are expired by age
only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass

import msgspec

from epochal.connectors.staging.epoch_marker import NO_EPOCH, MarkedOutput, Marker, Refuse

QUERY_KEY = "spark.sql.streaming.queryId"
EPOCH_KEY = "spark.sql.streaming.epochId"
TOKEN_KEY = "epochal-token"
ATTEMPT_KEY = "epochal-attempt"

ICEBERG_OUTPUT = MarkedOutput(
    magic=b"EIF1",
    noun="table",
    how_lost="the table was deleted, replaced or registered again from an old copy, or its "
    "properties were removed, or this is not the table or the branch that the query wrote to",
    how_behind="The table was restored from an old copy, or this is not the table or the branch "
    "that the query wrote to",
    how_to_look=f"the summaries of its snapshots have them under {EPOCH_KEY}",
)


class MarkProperty(msgspec.Struct, frozen=True):
    """The value of the table property, as JSON."""

    epoch: int
    token: str
    sequence: int
    """The sequence number of the newest snapshot at that time."""
    snapshot: int | None
    """The epoch's snapshot; None if the marker was written without an epoch."""
    v: int = 1


@dataclass(frozen=True, slots=True)
class SnapshotMark:
    """A snapshot's place in history, and its summary."""

    snapshot: int
    sequence: int
    summary: Mapping[str, str]
    parent: int | None = None
    timestamp_ms: int = 0

    @property
    def query_id(self) -> str | None:
        """The streaming query that wrote it."""
        return self.summary.get(QUERY_KEY)


def property_name(query_id: str, branch: str, main: str = "main") -> str:
    """The name of the property with a query's marker. Each branch has its own."""
    return f"epochal.{query_id}" if branch == main else f"epochal.{query_id}.{branch}"


def encode_property(mark: MarkProperty) -> str:
    return msgspec.json.encode(mark).decode()


def summary_of(query_id: str, marker: Marker, attempt: int) -> dict[str, str]:
    """What the summary of an epoch's snapshot says."""
    return {
        QUERY_KEY: query_id,
        EPOCH_KEY: str(marker.epoch),
        TOKEN_KEY: marker.token,
        ATTEMPT_KEY: str(attempt),
    }


def newest_attempt(query_id: str, history: Iterable[SnapshotMark]) -> int:
    """The attempt that committed the query's newest epoch; -1 if it is unknown."""
    ours = (_number(mark, ATTEMPT_KEY) for mark in history if mark.query_id == query_id)
    return next(ours, -1)


def newest_mark(
    query_id: str, text: str | None, history: Iterable[SnapshotMark], retained: Set[int]
) -> Marker | Refuse | None:
    """The newest epoch of the query in the table; None if it has none.

    `text` is the value of the property, `history` the branch's snapshots from the newest back, and
    `retained` are the ids of all snapshots of the table.
    """
    chain = list(history)
    newest = next((mark for mark in chain if mark.query_id == query_id), None)
    noted = None if text is None else _property(text)
    if noted is not None and (newest is None or noted.sequence >= newest.sequence):
        on_branch = {mark.snapshot for mark in chain}
        if noted.snapshot is not None and noted.snapshot in retained - on_branch:
            return Refuse(
                f"it names snapshot {noted.snapshot} with epoch {noted.epoch}, which is no longer "
                f"part of the branch: the table was rolled back to an earlier snapshot",
                "Roll the table forward again.",
            )
        return Marker(noted.epoch, noted.token)
    if newest is None:
        return None
    return Marker(_number(newest, EPOCH_KEY), newest.summary.get(TOKEN_KEY, ""))


def _property(text: str) -> MarkProperty | None:
    try:
        return msgspec.json.decode(text, type=MarkProperty)
    except msgspec.DecodeError:
        return None  # not ours; a missing marker is refused if the log has epochs


def _number(mark: SnapshotMark, key: str) -> int:
    """A number in a summary; -1, which is also `NO_EPOCH`, if it is missing."""
    text = mark.summary.get(key, "")
    return int(text) if text.isdigit() else NO_EPOCH


def expired_snapshots(
    snapshots: Iterable[SnapshotMark],
    branches: Mapping[str, int],
    tags: Set[int],
    *,
    branch: str,
    query_id: str,
    keep: int | None,
    oldest_ms: int | None,
) -> list[int]:
    """The snapshots to expire, oldest first. `branches` has the newest snapshot of each.

    On a branch, `keep` snapshots stay, and all that are not older than `oldest_ms`. Either may be
    None: then only the other rule counts.
    """

    def is_old(mark: SnapshotMark) -> bool:
        return oldest_ms is not None and mark.timestamp_ms < oldest_ms

    by_id = {mark.snapshot: mark for mark in snapshots}
    kept, reachable = set(tags), set(tags)
    for name, head in branches.items():
        chain = _chain(by_id, head)
        reachable |= {mark.snapshot for mark in chain}
        ours = [place for place, mark in enumerate(chain) if mark.query_id == query_id]
        needed = ours[0] + 1 if ours and name == branch else 1
        kept |= {
            mark.snapshot
            for place, mark in enumerate(chain)
            if place < max(needed, keep or 1) or (oldest_ms is not None and not is_old(mark))
        }
    gone = [
        mark
        for mark in by_id.values()
        if mark.snapshot not in kept and (mark.snapshot in reachable or is_old(mark))
    ]
    return [mark.snapshot for mark in sorted(gone, key=lambda mark: mark.timestamp_ms)]


def _chain(by_id: Mapping[int, SnapshotMark], head: int) -> list[SnapshotMark]:
    chain: list[SnapshotMark] = []
    mark = by_id.get(head)
    while mark is not None:
        chain.append(mark)
        mark = None if mark.parent is None else by_id.get(mark.parent)
    return chain


def unreferenced(expired: Sequence[Set[str]], kept: Iterable[Set[str]]) -> set[str]:
    """What expired snapshots refer to and no other snapshot does."""
    gone: set[str] = set().union(*expired)
    return gone.difference(*kept)
