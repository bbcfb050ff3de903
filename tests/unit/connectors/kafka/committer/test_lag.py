"""A query's position, read from its checkpoint; its lag in records and seconds, and the metrics."""

from __future__ import annotations

import pytest

from epochal.checkpoint import Checkpoint
from epochal.checkpoint.entries import COMMIT_FORMAT, OFFSET_FORMAT, CommitEntry, OffsetEntry
from epochal.connectors.kafka.cluster_worker import GroupStats
from epochal.connectors.kafka.committer.committer_metrics import committer_text, lag_text
from epochal.connectors.kafka.committer.lag import (
    PartitionLag,
    lag_of,
    query_id_of,
    read_position,
    seconds_behind,
    source_names,
    waiting,
)
from epochal.connectors.kafka.offsets import CommittedOffset, Mark, Position, lowest_offsets
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
    assert lowest_offsets(position.ends) == {("t", 0): 20}
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
    assert lowest_offsets(position.ends) == {("t", 0): 20}


def test_a_query_that_has_not_finished_a_batch_has_no_position() -> None:
    assert read_position(checkpoint(planned=0, committed=-1), QUERY_ID) is None


def test_a_commit_without_offsets_is_an_error() -> None:
    with pytest.raises(CheckpointError, match="no offsets/1"):
        read_position(checkpoint(planned=0, committed=1), QUERY_ID)


def test_a_directory_without_metadata_is_not_a_checkpoint() -> None:
    with pytest.raises(OptionError, match="metadata"):
        query_id_of(Checkpoint(MemoryFiles()))


def lag(committed: int | None, processed: int | None, latest: int | None) -> PartitionLag:
    return PartitionLag("q", "g", "t", 0, committed, processed, 0, latest)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (lag(5, 7, 10), (3, 5, 3)),  # from what was processed
        (lag(5, None, 10), (5, 5, None)),  # without a checkpoint from the group
        (lag(500, 500, 10), (0, 0, 0)),  # of a topic that was made again
        (lag(None, None, 10), (None, None, None)),
        (lag(5, 5, None), (None, None, None)),
    ],
)
def test_lag_counts_from_what_was_processed_else_from_the_group(
    found: PartitionLag, expected: tuple[int | None, int | None, int | None]
) -> None:
    assert (found.lag, found.committed_lag, found.processed_lag) == expected


def test_partitions_of_group_checkpoint_and_topics_are_all_listed() -> None:
    mark = Mark("from-mark", 1).to_text()
    found = lag_of(
        query=None,
        group="g",
        committed={("t", 0): CommittedOffset(5, mark)},
        processed={("t", 1): 6},
        earliest={("t", 2): 0},
        latest={("t", 0): 8, ("t", 2): 9},
    )
    assert found == [
        PartitionLag("from-mark", "g", "t", 0, 5, None, None, 8),
        PartitionLag(None, "g", "t", 1, None, 6, None, None),
        PartitionLag(None, "g", "t", 2, None, None, 0, 9),
    ]


def test_only_partitions_with_waiting_records_are_read_for_their_age() -> None:
    aged = PartitionLag("q", "g", "t", 3, 2, 2, 50, 60)
    assert waiting([lag(5, 7, 10), lag(10, 10, 10), lag(None, None, 10), aged]) == {
        ("t", 0): 7,
        ("t", 3): 50,
    }


def test_seconds_are_the_age_of_the_oldest_waiting_record() -> None:
    assert seconds_behind(lag(5, 7, 10), {("t", 0): 1_000}, 3_500) == 2.5
    assert seconds_behind(lag(5, 7, 10), {("t", 0): 9_000}, 3_500) == 0.0
    assert seconds_behind(lag(10, 10, 10), {}, 3_500) == 0.0
    assert seconds_behind(lag(5, 7, 10), {("t", 0): None}, 3_500) == 0.0
    assert seconds_behind(lag(5, 7, 10), {}, 3_500) is None
    assert seconds_behind(lag(None, None, 10), {}, 3_500) is None


def test_metrics_have_the_names_and_labels_of_both_known_exporters() -> None:
    lags = [
        PartitionLag("q", "g", "t", 0, 5, 7, 1, 10, 2.5),
        PartitionLag("q", "g", "t", 1, 4, 4, 0, 4, 0.0),
        PartitionLag("q", None, "u", 0, None, 3, 0, 9, 1.0),
    ]
    lines = [line for line in lag_text(lags, "c").splitlines() if not line.startswith("#")]
    assert lines[:8] == [
        'kafka_consumergroup_group_offset{cluster_name="c",group="g",topic="t",partition="0"} 5',
        'kafka_consumergroup_group_offset{cluster_name="c",group="g",topic="t",partition="1"} 4',
        'kafka_consumergroup_group_lag{cluster_name="c",group="g",topic="t",partition="0"} 5',
        'kafka_consumergroup_group_lag{cluster_name="c",group="g",topic="t",partition="1"} 0',
        'kafka_consumergroup_group_lag_seconds{cluster_name="c",group="g",topic="t",partition="0"}'
        " 2.5",
        'kafka_consumergroup_group_lag_seconds{cluster_name="c",group="g",topic="t",partition="1"}'
        " 0.0",
        'kafka_consumergroup_group_max_lag{cluster_name="c",group="g"} 5',
        'kafka_consumergroup_group_max_lag_seconds{cluster_name="c",group="g"} 2.5',
    ]
    assert 'kafka_consumergroup_group_sum_lag{cluster_name="c",group="g"} 5' in lines
    assert 'kafka_consumergroup_lag{consumergroup="g",topic="t",partition="0"} 5' in lines
    assert (
        'epochal_query_lag{cluster_name="c",query="q",group="",topic="u",partition="0"} 6' in lines
    )


def test_labels_are_escaped() -> None:
    text = lag_text([PartitionLag(None, 'a"b\\c\n', "t", 0, 1, None, 0, 1)], "c")
    assert 'group="a\\"b\\\\c\\n"' in text


def test_the_committer_exports_its_counters() -> None:
    stats = GroupStats(commits=3, failures=2, last_error="x", last_commit_ms=1500)
    text = committer_text({("k:9", "g"): stats}, pending=4, dropped=1, errors=0)
    labels = '{bootstrap_servers="k:9",group="g"}'
    assert f"epochal_kafka_committer_commits_total{labels} 3\n" in text
    assert f"epochal_kafka_committer_healthy{labels} 0\n" in text
    assert f"epochal_kafka_committer_last_commit_timestamp_seconds{labels} 1.5\n" in text
    assert "epochal_kafka_committer_pending_offsets 4\n" in text
