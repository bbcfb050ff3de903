"""Follows a checkpoint's commit log from outside the job, and says how far its query is.

Only `commits/N` counts: `offsets/N` alone is a plan that may be run again. A query that purges its
logs may remove an entry between listing and reading; then the next look finds a newer one.
"""

from __future__ import annotations

from epochal.checkpoint import Checkpoint
from epochal.connectors.kafka.offsets import Place, Position, parse_offsets
from epochal.errors import CheckpointError, OptionError

NO_METADATA = "The directory has no `metadata` file: it is no checkpoint, or not one yet."


def query_id_of(checkpoint: Checkpoint) -> str:
    """The id under which the query's commits are marked."""
    metadata = checkpoint.metadata()
    if metadata is None:
        raise OptionError(f"{checkpoint.url}: {NO_METADATA}")
    return metadata.id


def read_position(
    checkpoint: Checkpoint, query_id: str, *, after: int | None = None
) -> Position | None:
    """The end of the newest finished batch; None if there is none, or it is still `after`.

    A rewound query is before `after`, and that is news, too.
    """
    batch_id = checkpoint.commits.latest_batch_id()
    if batch_id is None or batch_id == after:
        return None
    entry = checkpoint.offsets.get(batch_id)
    if entry is None:
        newer = checkpoint.commits.latest_batch_id()
        if newer == batch_id:
            raise CheckpointError(
                f"{checkpoint.url}: batch {batch_id} is committed, but there is no offsets/"
                f"{batch_id} to say where it ended. `epochal checkpoint verify` tells more."
            )
        return read_position(checkpoint, query_id, after=after)
    return Position(query_id, batch_id, tuple(entry.by_source.values()))


def source_names(checkpoint: Checkpoint, batch_id: int) -> list[str]:
    """The names of the sources, in the order of `Position.ends`."""
    entry = checkpoint.offsets.get(batch_id)
    return [] if entry is None else list(entry.by_source)


def kafka_places(position: Position, source: int | None = None) -> dict[Place, int]:
    """How far the query is in its Kafka sources, or in one of them.

    Where two sources read one partition, the lower offset is how far the query is.
    """
    ends = position.ends if source is None else position.ends[source : source + 1]
    places: dict[Place, int] = {}
    for end in ends:
        for place, offset in (parse_offsets(end) or {}).items():
            places[place] = min(offset, places.get(place, offset))
    return places
