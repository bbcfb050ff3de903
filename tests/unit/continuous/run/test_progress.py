"""Progress reports, from committed epochs to Spark's JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace
from pyspark.sql.streaming.listener import StreamingQueryProgress

from epochal.continuous.run.progress import OperatorNote, ProgressMaker, QueryNote, latency
from epochal.epoch.committed import CommittedEpoch

NOTE = QueryNote(
    query_id="11111111-1111-1111-1111-111111111111",
    run_id="22222222-2222-2222-2222-222222222222",
    name="clicks",
    sources=("rate", "files"),
    sink="memory",
    operators=(OperatorNote(0, "stateStoreSave", 5, 2),),
)


def epoch(number: int, **other: Any) -> CommittedEpoch:
    """Epoch `number`, 100 ms long, committed 7 ms after its cut, 10 and 20 rows."""
    usual = CommittedEpoch(
        epoch=number,
        started_ms=number * 100,
        cut_ms=number * 100 + 100,
        committed_ms=number * 100 + 107,
        rows_in=(10, 20),
        rows_out=25,
        offsets=(str(number), json.dumps({"log": number})),
        state=((0, 40 + number, 3, 1),),
    )
    return replace(usual, **other)


def quiet(number: int) -> CommittedEpoch:
    return epoch(number, rows_in=(0, 0), rows_out=0, state=((0, 40, 0, 0),))


def maker(*epochs: CommittedEpoch) -> ProgressMaker:
    made = ProgressMaker(NOTE, ["0", None], 100)
    for each in epochs:
        made.add(each)
    return made


def report(made: ProgressMaker, now_ms: int) -> dict[str, Any]:
    found = made.make(now_ms)
    assert found is not None
    return found


def test_a_report_sums_up_every_epoch_since_the_last() -> None:
    found = report(maker(epoch(1), epoch(2), epoch(3)), 1100)
    assert found["batchId"] == 3
    assert found["epochs"] == {"first": 1, "last": 3, "count": 3}
    assert found["numInputRows"] == 90
    assert [source["numInputRows"] for source in found["sources"]] == [30, 60]
    assert found["sink"] == {"description": "memory", "numOutputRows": 75}
    assert found["timestamp"] == "1970-01-01T00:00:00.100Z"
    assert found["batchDuration"] == 307


def test_rates_are_over_the_span_of_the_report_and_over_the_time_of_reading() -> None:
    found = report(maker(epoch(1), epoch(2), epoch(3)), 1100)
    assert found["inputRowsPerSecond"] == pytest.approx(90.0)  # 90 rows in 1000 ms
    assert found["processedRowsPerSecond"] == pytest.approx(300.0)  # 90 rows in 3 x 100 ms
    assert found["sources"][0]["inputRowsPerSecond"] == pytest.approx(30.0)


def test_offsets_run_on_from_report_to_report() -> None:
    made = maker(epoch(1))
    first = report(made, 1000)
    made.add(epoch(2))
    second = report(made, 2000)
    starts = [[source["startOffset"] for source in each["sources"]] for each in (first, second)]
    ends = [[source["endOffset"] for source in each["sources"]] for each in (first, second)]
    assert starts == [[0, None], [1, {"log": 1}]]
    assert ends == [[1, {"log": 1}], [2, {"log": 2}]]


def test_latest_offsets_and_the_distance_to_them_are_told_where_known() -> None:
    found = maker(epoch(1)).make(1000, latest=["9", None], behind=[8, None])
    assert found is not None
    assert [source["latestOffset"] for source in found["sources"]] == [9, {"log": 1}]
    assert [source["metrics"] for source in found["sources"]] == [{"behindLatest": "8"}, {}]


def test_state_rows_are_the_newest_total_and_the_sum_of_changes() -> None:
    (operator,) = report(maker(epoch(1), epoch(2)), 1000)["stateOperators"]
    assert operator["operatorName"] == "stateStoreSave"
    assert (operator["numRowsTotal"], operator["numRowsUpdated"]) == (42, 6)
    assert operator["numRowsRemoved"] == 2
    assert (operator["numShufflePartitions"], operator["numStateStoreInstances"]) == (5, 10)


def test_rows_that_came_too_late_are_told_by_operator() -> None:
    late = maker(epoch(1, late_rows=((0, 2), (7, 50))), epoch(2, late_rows=((0, 3),)))
    (operator,) = report(late, 1000)["stateOperators"]
    assert operator["numRowsDroppedByWatermark"] == 5
    (timely,) = report(maker(epoch(1)), 1000)["stateOperators"]
    assert timely["numRowsDroppedByWatermark"] == 0


def test_the_watermark_is_told_if_the_query_has_one() -> None:
    assert report(maker(epoch(1)), 1000)["eventTime"] == {}
    marked = report(maker(epoch(1, watermark_ms=5_000, highest_ms=15_000)), 1000)
    assert marked["eventTime"] == {
        "max": "1970-01-01T00:00:15.000Z",
        "watermark": "1970-01-01T00:00:05.000Z",
    }
    unmoved = report(maker(epoch(1, watermark_ms=-1, highest_ms=None)), 1000)
    assert unmoved["eventTime"] == {"watermark": "1970-01-01T00:00:00.000Z"}


def test_at_most_one_report_is_due_per_interval() -> None:
    made = maker(epoch(1))
    assert [made.is_due(now, 1000) for now in (200, 1099, 1100)] == [False, False, True]
    report(made, 1100)
    made.add(epoch(2))
    assert [made.is_due(now, 1000) for now in (1200, 2099, 2100)] == [False, False, True]


def test_epochs_without_data_are_no_progress() -> None:
    made = maker(quiet(1), quiet(2))
    assert not made.is_due(5000, 1000)
    assert made.make(5000) is None


def test_an_epoch_in_which_only_state_changed_is_progress() -> None:
    assert maker(epoch(1, rows_in=(0, 0), rows_out=0)).make(1000) is not None


def test_a_quiet_query_is_idle_once_per_interval() -> None:
    made = maker(quiet(1))
    times = (5_000, 10_100, 10_200, 20_099, 20_100)
    assert [made.is_idle(now, 10_000) for now in times] == [False, True, False, False, True]


def test_epochs_of_a_quiet_time_that_was_told_of_are_forgotten() -> None:
    made = maker(quiet(1), quiet(2))
    assert made.is_idle(20_000, 10_000)
    made.add(epoch(3))
    found = report(made, 21_000)
    assert found["epochs"] == {"first": 3, "last": 3, "count": 1}
    assert found["sources"][0]["startOffset"] == 2


def test_a_query_with_data_is_not_idle_and_quiet_time_counts_from_its_report() -> None:
    made = maker(epoch(1))
    assert not made.is_idle(60_000, 10_000)
    report(made, 60_000)
    assert [made.is_idle(now, 10_000) for now in (69_999, 70_000)] == [False, True]


def test_latency_is_told_by_nearest_rank() -> None:
    assert latency([5]) == {"p50": 5, "p99": 5, "max": 5}
    assert latency(list(range(1, 101))) == {"p50": 50, "p99": 99, "max": 100}
    assert report(maker(epoch(1), epoch(2)), 1000)["epochLatencyMs"]["max"] == 7


def test_pyspark_reads_the_report_and_gives_the_same_json_back() -> None:
    found = report(maker(epoch(1)), 1000)
    read = StreamingQueryProgress.fromJson(found)
    assert json.loads(read.json) == found
    assert (read.batchId, read.numInputRows, read.sources[1].endOffset) == (1, 30, '{"log": 1}')
    assert read.stateOperators[0].numRowsTotal == 41
