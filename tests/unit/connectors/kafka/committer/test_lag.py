"""Lag in records and seconds, and its metrics."""

from __future__ import annotations

from epochal.connectors.kafka.cluster_worker import GroupStats
from epochal.connectors.kafka.commit_rules import CommittedOffset
from epochal.connectors.kafka.committer.committer_metrics import committer_text, lag_text
from epochal.connectors.kafka.committer.lag import PartitionLag, lag_of, seconds_behind, waiting
from epochal.connectors.kafka.offsets import Mark


def lag(committed: int | None, processed: int | None, latest: int | None) -> PartitionLag:
    return PartitionLag("q", "g", "t", 0, committed, processed, 0, latest)


def test_lag_counts_from_what_was_processed() -> None:
    found = lag(5, 7, 10)
    assert (found.lag, found.committed_lag, found.processed_lag) == (3, 5, 3)


def test_without_a_checkpoint_lag_counts_from_the_group() -> None:
    assert lag(5, None, 10).lag == 5


def test_a_recreated_topic_has_no_negative_lag() -> None:
    assert lag(500, 500, 10).lag == 0


def test_unknown_values_are_none() -> None:
    assert lag(None, None, 10).lag is None
    assert lag(5, 5, None).lag is None


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
