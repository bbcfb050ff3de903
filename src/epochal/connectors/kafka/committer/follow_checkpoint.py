"""Reads a query's position from its checkpoint, without contact to the running job.

Only batches in `commits/` count: an entry in `offsets/` alone is a plan that may run again.

Note: a running query purges its logs, so an entry may vanish between listing and reading. Then a
newer batch has been committed, and the next read finds it.
"""

from __future__ import annotations

from epochal.checkpoint import Checkpoint
from epochal.connectors.kafka.offsets import KafkaPartition, Position, parse_offsets
from epochal.errors import CheckpointError, OptionError

NO_METADATA = (
    "The directory has no `metadata` file: it is not a checkpoint, or the query has not written it "
    "yet. Check the path."
)


def query_id_of(checkpoint: Checkpoint) -> str:
    """The query's id, which marks its commits."""
    metadata = checkpoint.metadata()
    if metadata is None:
        raise OptionError(f"{checkpoint.url}: {NO_METADATA}")
    return metadata.id


def read_position(
    checkpoint: Checkpoint, query_id: str, *, after: Position | None = None
) -> Position | None:
    """The end of the newest finished batch; None if there is none, or if it is still `after`.

    A rewound query is at a batch before `after`, or at another batch of the same number; that
    position is returned, too. So the offsets are compared and not only the number.
    """
    batch_id = checkpoint.commits.latest_batch_id()
    if batch_id is None:
        return None
    entry = checkpoint.offsets.get(batch_id)
    if entry is None:
        newer = checkpoint.commits.latest_batch_id()
        if newer == batch_id:
            raise CheckpointError(
                f"{checkpoint.url}: batch {batch_id} is committed, but there is no offsets/"
                f"{batch_id}, so its end is unknown. Run `epochal checkpoint verify` for details."
            )
        return read_position(checkpoint, query_id, after=after)
    position = Position(query_id, batch_id, tuple(entry.by_source.values()))
    return None if position == after else position


def source_names(checkpoint: Checkpoint, batch_id: int) -> list[str]:
    """The names of the sources, in the order of `Position.ends`."""
    entry = checkpoint.offsets.get(batch_id)
    return [] if entry is None else list(entry.by_source)


def kafka_offsets(position: Position) -> dict[KafkaPartition, int]:
    """The query's offsets in all its Kafka sources.

    If two sources read the same partition, the lower offset counts.
    """
    offsets: dict[KafkaPartition, int] = {}
    for end in position.ends:
        for tp, offset in (parse_offsets(end) or {}).items():
            offsets[tp] = min(offset, offsets.get(tp, offset))
    return offsets
