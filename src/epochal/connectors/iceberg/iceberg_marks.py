"""Decides which epoch of a query is the newest in an Iceberg table. Pure.

Every epoch with rows is one commit to the catalog. It adds a snapshot and sets a table property,
both or neither:

    the snapshot's summary     Spark's own keys for the query's id and the epoch, so that Spark and
                               Epochal skip what the other has written
    the property               epoch, snapshot and sequence number; it outlives the snapshot, which
                               may be expired

Whichever of the two has the higher sequence number counts. A snapshot is newer than the property if
Spark ran the query in between.

Note: Spark looks for its keys from the newest snapshot back, parent by parent. If one snapshot in
that chain is expired, it finds nothing. `iceberg_expiry` keeps the chain.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
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


def property_name(query_id: str, branch: str, main: str = "main") -> str:
    """The name of the property with a query's marker. Each branch has its own."""
    return f"epochal.{query_id}" if branch == main else f"epochal.{query_id}.{branch}"


def encode_property(mark: MarkProperty) -> str:
    """The property's value."""
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
    for each in history:
        if each.summary.get(QUERY_KEY) == query_id:
            text = each.summary.get(ATTEMPT_KEY, "")
            return int(text) if text.isdigit() else -1
    return -1


def newest_mark(
    query_id: str, text: str | None, history: Iterable[SnapshotMark], retained: Set[int]
) -> Marker | Refuse | None:
    """The newest epoch of the query in the table; None if it has none.

    `text` is the value of the property, `history` the branch's snapshots from the newest back, and
    `retained` are the ids of all snapshots of the table.
    """
    chain = list(history)
    found = next((each for each in chain if each.summary.get(QUERY_KEY) == query_id), None)
    kept = None if text is None else _property(text)
    if kept is not None and (found is None or kept.sequence >= found.sequence):
        on_branch = {each.snapshot for each in chain}
        if kept.snapshot is not None and kept.snapshot in retained - on_branch:
            return Refuse(
                f"it names snapshot {kept.snapshot} with epoch {kept.epoch}, which is no longer "
                f"part of the branch: the table was rolled back to an earlier snapshot",
                "Roll the table forward again.",
            )
        return Marker(kept.epoch, kept.token)
    if found is None:
        return None
    return Marker(_epoch(found), found.summary.get(TOKEN_KEY, ""))


def _property(text: str) -> MarkProperty | None:
    try:
        return msgspec.json.decode(text, type=MarkProperty)
    except msgspec.DecodeError:
        return None  # not ours; a missing marker is refused if the log has epochs


def _epoch(mark: SnapshotMark) -> int:
    text = mark.summary.get(EPOCH_KEY, "")
    return int(text) if text.isdigit() else NO_EPOCH
