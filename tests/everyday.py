"""Which tests `make test` leaves to `make test-full`, and why.

`make test` must answer within ten minutes on two cores. It runs every kind of test, and of each
matrix a part that reaches all of the code. The rest of the matrices are listed here, by node id.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TypeVar

import pytest

T = TypeVar("T")

FULL: dict[str, str] = {
    r"golden/.*\[4\.[012]\.\d+-": "checkpoints of releases between the oldest and the newest",
    r"fuzz/test_mutated_checkpoints.*\[\w+-[1-9]\d*\]": "more rounds of the same mutations",
    r"fuzz/test_prepared_checkpoints.*\[[1-9]\d*\]": "380 of 400 prepared checkpoints",
    r"fuzz/test_mutated_state.*\[(1-|0-rocksdb|0-codec)": "more rounds, and more kinds of stores",
    r"frames/test_function_examples\.py.*\[(?!0-true)": "eleven of twelve parts, and without ANSI",
    r"frames/test_file_reading\.py.*random_files.*\[([6-9]|1\d)\]": "more random files",
    r"frames/test_file_reading\.py.*binary_formats.*\[(?!(all|no c|a wr))": "more ways to read",
    r"frames/test_random_sql\.py.*spark\[[1-9]": "more seeds",
    r"frames/test_random_sql\.py.*(fault\[(?!a lost row(-rows)?\])|programs.*restart)": "faults",
    r"simulation/test_engine\.py.*goes_wrong\[[1-7]\]": "1,750 of 2,000 seeds",
    r"simulation/test_engine_trees\.py.*goes_wrong\[[1-3]\]": "600 of 800 seeds",
    r"simulation/test_engine_pubsub\.py.*it_comes\[[1-3]\]": "180 of 240 seeds",
    r"simulation/test_epoch_files\.py.*found\[files are swept": "a fault that is found late",
    r"simulation/test_engine\.py.*found\[state is loaded by its": "a fault that is found late",
    r"contract/test_(files|edits)\.py.*\[hdfs": "HDFS; local disk, memory and S3 stay",
    r"contract/test_edits\.py.*\[s3": "edits on S3; the files' contract on S3 stays",
    r"fault/test_outages\.py.*(read-only-delta|paused|longer_than)": "more; a full disk stays",
    r"fault/test_stepped_clock\.py": "the clock of the soak; it needs a C compiler",
    r"contract/test_pubsub_server\.py.*\[pstest": "Google's own server for tests; it needs Go",
    r"spark/test_edits_resume\.py.*(two_states|\[(?!repair_hole-file_sink_counts))": "more edits",
    r"spark/test_state_edits_resume\.py": "more edits",
    r"spark/test_reshape_resume\.py.*(split|merged_with|places|type|processor|\[HDFS)": (
        "more queries that change"
    ),
    r"golden/test_state_edits_golden\.py.*\[(3|4\.3\.0-(?!transform_ids|rocksdb_ses))": "more",
    r"golden/test_state_edits.*older_ba.*\[(?!transform_(ttl-total|ids)\])": "more",
    r"spark/test_switch_resume\.py": "clones and switches of Spark's queries, of all releases",
    r"spark/test_switching_queries\.py.*(busy|way_back)": "more clones; the way back",
    r"golden/test_clone_golden.*state\[(?!4\.3\.0-(windowed|rocksdb_v2|transform)\])": "more",
    r"simulation/test_switch_crashes\.py.*\[to-a-clone": "switches to a clone; new ones stay",
    r"simulation/test_edit_crashes\.py.*\[clone\]": "clones; they are copies in the journal",
    r"contract/test_merge_keys\.py.*\[\w+-[12]\]": "keys of fewer columns",
    r"contract/test_shadow\.py.*(?<!rows)\[(delta-partitioned|iceberg)\]": "more tables",
    r"frames/test_rocksdb_takeover\.py.*\[ids-changelogs\]": "the same with changelogs",
    r"spark/test_field_reports\.py.*\[(?!(off|the f|a temp|an sst file has another u|drop|a ba))": (
        "more reports"
    ),
    r"spark/test_random_damage\.py.*\[(kafka|delta)": "the same with a broker, or Delta's jars",
    r"spark/test_transform_with_state_parity\.py.*(timers|late_rows)\[": "times to live and timers",
    r"frames/test_aggregates\.py.*(spark\[|same\[|stores\[(?!every))": "every type",
    r"spark/test_state_placement\.py": "a cluster of its own; stores and coordinators stay",
    r"frames/test_no_columns\.py.*by_spark\[(?!(json-p int|parquet-\]))": "more formats",
    r"frames/test_no_columns\.py.*(corrected\[hdfs|\[sparks\]|refused\[|console)": "more sinks",
    r"fault/test_edit_kill\.py.*undone\[(?!(rewind|repair|copy|state-put)-)": "more commands",
    r"fault/test_evaluator_kills\.py.*(directory_that|work_for)": "what dead processes left behind",
    r"frames/test_catalyst_releases\.py": "plans of all releases",
    r"frames/test_take_over\.py.*(such_a|sparks_st|rate_s|pins)": "more",
    r"frames/test_take_over_matrix\.py.*\[(?!limit-hdfs-spark\])": "more turns, kills",
    r"frames/test_write_stream\.py.*(a_table_is|writer_of_rows|refresh)": "more",
    r"unit/state/disk/test_memory_bound\.py": "two million keys take a minute",
    r"unit/cli/test_terminal\.py.*terminal\[(80|140)\]": "more widths",
    r"frames/test_epoch_bounds\.py.*(unless_there|of_all)": "more bounds",
    r"frames/test_observe\.py.*\[(?!Am)": "more time zones",
    r"frames/test_state_on_disk\.py": "state on disk; operators run on it in unit tests",
    r"fault/test_continuous_kills\.py.*\[disk": "state on disk; operators run on it in unit tests",
    r"fault/test_postgres_kills\.py": "kills on a cluster; the sink's rules stay",
    r"integration/test_postgres_pooler\.py": "a pooler, which is downloaded",
    r"frames/test_empty_results\.py.*(\[(iceberg|postgres)|rows_of_others)": "more sinks",
    r"integration/test_postgres_sink\.py.*(stays_away|not_up_yet)": "more restarts of the server",
    r"spark/test_upgrade_check\.py.*\[(?!sum: (nothing|another key)\])": "pairs",
    r"spark/test_upgrade_check\.py.*two_queries": "all pairs again, without checkpoints",
    r"spark/test_upgrade_engine\.py.*\[(?!(sum: another key|frame: nothing)\])": "pairs",
    r"spark/test_upgrade_commands\.py.*(shell|killed|\[(?!one more count\]))": "more commands",
    r"spark/test_upgrade_releases\.py": "checkpoints of earlier releases",
    r"integration/test_upgrade_kafka\.py": "changed topics, with both engines",
    r"spark/test_check_program\.py": "whole programs",
    r"integration/test_kafka_committer\.py.*source_of_a_union": "a union; one source stays",
    r"spark/test_run_program\.py": "a whole program that fails",
    r"spark/test_first_contact\.py.*(publishes|one_sentence|cluster)": "more first programs",
    r"frames/test_driver_frames\.py.*continued\[(?!(3\.5\.9-(join|per_key)|4\.3\.0-win))": "more",
    r"unit/testing/test_pytest_plugin\.py.*real_session": "a session of its own, with its JVM",
    r"integration/test_dashboard_pages\.py.*(eyes\[(?!390-dark|1440-l)|seen\[(?!im))": "more looks",
    r"integration/test_dashboard_browser\.py.*is_marked": "more looks",
    r"integration/test_dashboard_kafka\.py": "lag of Spark's own query, with a broker",
    r"integration/test_docs_blocks\.py": "the blocks of all pages",
    r"integration/test_tutorials\.py.*\[tutorial-": "tutorials; README stays",
    r"integration/test_examples\.py.*(notebook_runs|table_of_totals|iceberg)": "whole programs",
    r"integration/test_demo\.py": "the demo as a whole",
    r"integration/test_kafka_sink\.py.*(letter.*(at-least|topic)|shut_out)": "other letters",
    r"integration/test_real_time_checkpoint\.py": "batches of real-time mode take five seconds",
    r"integration/test_kafka_registry\.py": "a schema registry, which takes half a minute to start",
    r"integration/test_kafka_committer_chaos\.py": "brokers, topics and groups that come and go",
    r"integration/test_kafka_committer\.py.*right_after": "a whole process that ends",
    r"brokers/test_kafka_(start|security)\.py": "brokers that are late, or want passwords",
    r"brokers/test_pubsub_exactly_once\.py.*batch_is_replayed": "waits for leases to end",
    r"brokers/test_pubsub_source\.py.*(killed_sidecar|replayed|be_reached)": "waits for deadlines",
    r"fault/test_delta_kills\.py.*(on_a_cluster|wakes_up)": "kills on a cluster, late drivers",
    r"contract/test_delta_(faults|maintenance)\.py.*(race_on_s3|at_the_same_time)": "races",
    r"spark/test_delta_turns\.py": "turns of Spark's Delta sink and ours; it needs its jars",
    r"contract/test_sinks\.py.*\[delta-s3": "Delta on S3, sentence by sentence",
    r"spark/test_iceberg_spark\.py": "Spark's own connector, with another release of Spark",
    r"integration/test_iceberg_catalogs\.py": "a REST catalog and tables on S3",
    r"integration/test_iceberg_maintenance\.py.*(two_(com|dr)|epochs_beside)": "races",
    r"contract/test_sinks\.py.*\[iceberg-": "the same with keys and partitions",
    r"fault/test_slow_workers\.py.*\[(?!compute)": "other kinds of slow tasks",
    r"fault/test_(continuous|iceberg|kafka|pubsub|letter)_kills\.py": "kills; killed workers stay",
}
"""A pattern of node ids, without the leading `tests/`, and what it leaves out."""


def mark_full(items: Iterable[pytest.Item]) -> None:
    """Mark the tests that the table names."""
    left_out = re.compile("|".join(f"tests/(?:{pattern})" for pattern in FULL))
    for item in items:
        if left_out.search(item.nodeid):
            item.add_marker(pytest.mark.full)


def asked_for(request: pytest.FixtureRequest, parameter: str, values: Iterable[T]) -> list[T]:
    """Of all values of a parameter, those that a test selected for this run has.

    For fixtures that prepare the cases of a whole module at once: without this they would also
    prepare what nobody is going to look at.
    """
    wanted = [
        item.callspec.params[parameter]
        for item in request.session.items
        if isinstance(item, pytest.Function)
        and item.path == request.path
        and hasattr(item, "callspec")
        and parameter in item.callspec.params
    ]
    return [value for value in values if value in wanted]
