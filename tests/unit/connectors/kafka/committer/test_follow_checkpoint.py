"""A query's position, read from its checkpoint."""

from __future__ import annotations

import pytest

from epochal.checkpoint import Checkpoint
from epochal.checkpoint.entries import COMMIT_FORMAT, OFFSET_FORMAT, CommitEntry, OffsetEntry
from epochal.connectors.kafka.committer.follow_checkpoint import (
    kafka_offsets,
    query_id_of,
    read_position,
    source_names,
)
from epochal.connectors.kafka.offsets import Position
from epochal.errors import CheckpointError, OptionError
from epochal.testing.files import MemoryFiles

QUERY_ID = "53b62e34-0476-452d-8313-c1786e091891"


def checkpoint(*, planned: int, committed: int) -> Checkpoint:
    """Batches up to `planned` have offsets, those up to `committed` are finished."""
    files = MemoryFiles()
    files.create("metadata", f'{{"id":"{QUERY_ID}"}}'.encode())
    for batch in range(planned + 1):
        entry = OffsetEntry(1, (f'{{"t":{{"0":{batch * 10}}}}}', '{"logOffset":3}', None))
        files.create(f"offsets/{batch}", OFFSET_FORMAT.serialize(entry))
    for batch in range(committed + 1):
        files.create(f"commits/{batch}", COMMIT_FORMAT.serialize(CommitEntry()))
    return Checkpoint(files)


def test_the_position_is_that_of_the_last_finished_batch_not_of_the_planned_one() -> None:
    opened = checkpoint(planned=3, committed=2)
    position = read_position(opened, query_id_of(opened))
    assert position == Position(QUERY_ID, 2, ('{"t":{"0":20}}', '{"logOffset":3}', None))
    assert kafka_offsets(position) == {("t", 0): 20}
    assert source_names(opened, 2) == ["0", "1", "2"]


def test_there_is_no_new_position_until_another_batch_is_finished() -> None:
    opened = checkpoint(planned=3, committed=2)
    position = read_position(opened, QUERY_ID)
    assert read_position(opened, QUERY_ID, after=position) is None
    earlier = Position(QUERY_ID, 1, ('{"t":{"0":10}}', '{"logOffset":3}', None))
    assert read_position(opened, QUERY_ID, after=earlier) == position


def test_a_rewound_query_has_a_new_position() -> None:
    later = read_position(checkpoint(planned=7, committed=7), QUERY_ID)
    position = read_position(checkpoint(planned=2, committed=2), QUERY_ID, after=later)
    assert position is not None
    assert position.batch_id == 2


def test_a_rewound_query_that_is_at_the_same_batch_again_has_a_new_position() -> None:
    before = Position(QUERY_ID, 2, ('{"t":{"0":25}}', '{"logOffset":3}', None))
    position = read_position(checkpoint(planned=2, committed=2), QUERY_ID, after=before)
    assert position is not None
    assert kafka_offsets(position) == {("t", 0): 20}


def test_a_query_that_has_not_finished_a_batch_has_no_position() -> None:
    assert read_position(checkpoint(planned=0, committed=-1), QUERY_ID) is None


def test_a_commit_without_offsets_is_an_error() -> None:
    with pytest.raises(CheckpointError, match="no offsets/1"):
        read_position(checkpoint(planned=0, committed=1), QUERY_ID)


def test_a_directory_without_metadata_is_not_a_checkpoint() -> None:
    with pytest.raises(OptionError, match="metadata"):
        query_id_of(Checkpoint(MemoryFiles()))
