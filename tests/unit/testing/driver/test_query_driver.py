"""A query under test: what it reads, shows and remembers, epoch by epoch, and after a crash."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from tests.golden.library import Golden, unpack

import epochal
from epochal import testing
from epochal.continuous.api.stream import Stream
from epochal.continuous.operators.windows import tumbling
from epochal.errors import EpochError, OptionError, PlanChangedError
from epochal.files.local import LocalFiles
from epochal.testing.driver.histories import CrashStep

ORDERS = "user string, amount bigint"
ROOT = Path(__file__).resolve().parents[4]
STEPS: tuple[CrashStep, ...] = ("cut", "state", "prepare", "log", "commit", "ack")


def totals(orders: Stream) -> Stream:
    return orders.group_by("user").agg(rows="count", total=("sum", "amount"))


def test_an_epoch_shows_the_rows_that_were_fed_before_it() -> None:
    driver = testing.Driver(testing.stream(ORDERS).filter(pc.field("amount") > 1))
    driver.feed([("a", 1), ("b", 2)])
    assert driver.epoch() == [{"user": "b", "amount": 2}]
    assert driver.epoch() == []
    driver.feed([{"user": "c", "amount": 3}])
    driver.epoch()
    assert driver.output_by_epoch == {
        0: [{"user": "b", "amount": 2}],
        1: [],
        2: [{"user": "c", "amount": 3}],
    }


def test_a_window_closes_when_the_watermark_passes_it() -> None:
    events = testing.stream("at timestamp, user string")
    windows = events.with_watermark("at", "10 seconds").group_by(window=tumbling("at", "1 minute"))
    driver = testing.Driver(windows.count(output_mode="append"))
    driver.feed([(at(0), "a"), (at(30), "b")])
    assert (driver.run(), driver.watermark_ms) == ([], 20_000)
    driver.feed([(at(71), "c")])
    (row,) = driver.run()
    assert (row["count"], driver.watermark_ms) == (2, 61_000)


class Reminder(StatefulProcessor):  # type: ignore[misc]
    """Counts rows, and reports the count a minute of processing time after the first one."""

    def init(self, handle: Any) -> None:
        self._handle = handle
        self._count = handle.getValueState("count", "n bigint")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterable[Row]:
        if not self._count.exists():
            self._handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + 60_000)
        before = self._count.get()[0] if self._count.exists() else 0
        self._count.update((before + len(list(rows)),))
        return iter(())

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterable[Row]:
        yield Row(user=key[0], n=self._count.get()[0])

    def close(self) -> None: ...


def test_a_timer_fires_when_the_clock_is_advanced() -> None:
    reminders = testing.stream(ORDERS).transform_with_state(
        Reminder(), key=["user"], output="user string, n bigint", time_mode="ProcessingTime"
    )
    driver = testing.Driver(reminders)
    driver.feed([("a", 1), ("a", 2)])
    assert driver.epoch() == []
    assert driver.state(0, "a", store="count") == {"n": 2}
    driver.crash(at="commit")
    driver.restart()
    driver.advance(59_999)
    assert driver.epoch() == []
    driver.advance(1)
    assert driver.epoch() == [{"user": "a", "n": 2}]


@pytest.mark.parametrize("step", STEPS)
def test_a_crash_at_any_step_changes_nothing_that_is_shown(step: CrashStep) -> None:
    driver = testing.Driver(totals(testing.stream(ORDERS)), tasks=2, partitions=2)
    driver.feed([("a", 1)])
    driver.epoch()
    driver.feed([("a", 2)])
    driver.crash(at=step)
    driver.restart()
    driver.run()
    assert [row["total"] for row in driver.output] == [1, 3]
    assert list(driver.state(0, "a").values()) == [2, 3]


@pytest.mark.parametrize("step", STEPS)
def test_output_is_visible_only_after_the_commit(step: CrashStep) -> None:
    driver = testing.Driver(totals(testing.stream(ORDERS)))
    driver.feed([("a", 1)])
    driver.crash(at=step)
    assert len(driver.output) == (1 if step == "ack" else 0)


def test_a_change_without_state_goes_on_where_the_old_query_ended() -> None:
    orders = testing.stream(ORDERS)
    driver = testing.Driver(orders)
    driver.feed([("a", 1)])
    driver.epoch()
    driver.feed([("b", 5)])
    driver.restart(orders.with_column("amount", pc.multiply(pc.field("amount"), 2)))
    assert driver.run() == [{"user": "b", "amount": 10}]


@pytest.mark.parametrize("step", ["log", "commit", "ack"])
def test_a_query_goes_on_from_a_copy_of_a_checkpoint(step: CrashStep, tmp_path: Path) -> None:
    before = testing.Driver(totals(testing.stream(ORDERS)), tasks=2)
    before.feed([("a", 1), ("b", 2)])
    before.epoch()
    before.feed([("a", 4)])
    before.crash(at=step)
    is_decided = step != "log"
    before.save(tmp_path)
    files = LocalFiles(str(tmp_path))
    kept = {path: files.read(path) for path, _ in files.walk()}

    driver = testing.Driver(totals(testing.stream(ORDERS)), checkpoint=tmp_path)
    assert driver.state(0, "a")["sum"] == (5 if is_decided else 1)
    driver.feed([("a", 10)])
    assert [row["total"] for row in driver.run()] == [15 if is_decided else 11]
    assert {path: files.read(path) for path, _ in files.walk()} == kept


def test_a_refused_change_leaves_the_old_query_as_it_was() -> None:
    orders = testing.stream(ORDERS)
    driver = testing.Driver(totals(orders))
    driver.feed([("a", 1)])
    driver.epoch()
    with pytest.raises(PlanChangedError):
        driver.restart(orders.group_by("amount").count())
    driver.restart()
    driver.feed([("a", 2)])
    assert driver.epoch() == [{"user": "a", "rows": 2, "total": 3}]


def test_a_source_that_gets_a_column_keeps_its_rows() -> None:
    driver = testing.Driver(testing.stream("user string"))
    driver.feed([("a",)])
    driver.epoch()
    driver.feed([("b",)])
    driver.restart(testing.stream(ORDERS))
    driver.feed([("c", 3)])
    assert driver.run() == [{"user": "b", "amount": None}, {"user": "c", "amount": 3}]
    with pytest.raises(OptionError, match="fed before"):
        driver.restart(testing.stream("user bigint"))


def test_a_function_of_batches_is_called_once_for_an_epoch() -> None:
    calls: list[tuple[int, list[dict[str, Any]]]] = []

    def note(batch: pa.RecordBatch, epoch: int) -> None:
        calls.append((epoch, batch.to_pylist()))

    driver = testing.Driver(testing.stream(ORDERS).write_stream.foreach_batch(note))
    driver.feed([("a", 1)])
    driver.feed([("b", 2)])
    rows = driver.epoch()
    driver.epoch()
    assert calls == [(0, rows)]


def test_real_sources_are_replaced_and_named_by_what_they_read(tmp_path: Path) -> None:
    spark: Any = None
    reader = epochal.read_stream(spark).format("kafka").option("subscribe", "orders")
    kafka = reader.option("kafka.bootstrap.servers", "nowhere:9092").load()
    values = kafka.map_in_arrow(only_values, "line string")
    files = epochal.read_stream(spark).format("text").schema("value string")
    lines = files.load(str(tmp_path / "lines")).map_in_arrow(only_values, "line string")
    reader = epochal.read_stream(spark).format("pubsub").option("projectId", "p")
    pubsub = reader.option("subscriptionId", "letters").load()
    texts = pubsub.map_in_arrow(only_data, "line string")
    driver = testing.Driver(values.union(lines).union(texts))
    driver.feed("orders", [{"value": b"from kafka"}])
    driver.feed("lines", [("from files",)])
    driver.feed("letters", [{"data": b"from pubsub"}])
    expected = [("from files",), ("from kafka",), ("from pubsub",)]
    assert testing.rows_equal(driver.run(), expected)


def only_values(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
    for batch in batches:
        yield pa.record_batch({"line": batch["value"].cast(pa.string())})


def only_data(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
    for batch in batches:
        yield pa.record_batch({"line": batch["data"].cast(pa.string())})


def test_two_sources_are_fed_by_name_or_number() -> None:
    both = testing.stream(ORDERS, "web").union(testing.stream(ORDERS, "shop"))
    driver = testing.Driver(both)
    driver.feed("shop", [("a", 1)])
    driver.feed(0, [("b", 2)])
    assert sorted(row["user"] for row in driver.epoch()) == ["a", "b"]
    with pytest.raises(OptionError, match=r"web.*shop"):
        driver.feed([("c", 3)])
    with pytest.raises(OptionError, match="names 0 sources"):
        driver.feed("mail", [("c", 3)])


def test_rows_that_do_not_fit_are_refused_with_the_columns() -> None:
    driver = testing.Driver(testing.stream(ORDERS))
    for rows in ([("a",)], [{"name": "a"}], [("a", "many")], pa.table({"user": ["a"]})):
        with pytest.raises(OptionError, match="user string, amount int64"):
            driver.feed(rows)


def test_an_error_of_the_pipeline_reaches_the_test() -> None:
    def fail(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        raise ZeroDivisionError([each.num_rows for each in batches])

    driver = testing.Driver(testing.stream(ORDERS).map_in_arrow(fail, ORDERS))
    driver.feed([("a", 1)])
    with pytest.raises(ZeroDivisionError, match=r"\[1\]"):
        driver.epoch()
    with pytest.raises(EpochError, match="restart"):
        driver.epoch()


def test_pyspark_is_not_imported() -> None:
    program = """
import sys
from epochal import testing
events = testing.stream("user string, amount bigint")
totals = events.drop_duplicates().group_by("user").agg(total=("sum", "amount"), n="count")
totals = totals.drop("n").select("user", "total")
with testing.Driver(totals, tasks=2) as driver:
    driver.feed([("a", 1), ("a", 1), ("a", 2)])
    assert testing.rows_equal(driver.run(), [{"user": "a", "total": 3}])
    driver.fuzz([("a", 1)], seeds=3)
assert not [name for name in sys.modules if name.split(".")[0] in ("pyspark", "py4j")]
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_processor_needs_no_jvm() -> None:
    program = """
from tests.unit.testing.driver.test_query_driver import *
test_a_timer_fires_when_the_clock_is_advanced()
from pyspark import SparkContext
assert SparkContext._gateway is None
"""
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT)


def at(second: int) -> datetime:
    return datetime.fromtimestamp(second, UTC)


@pytest.mark.parametrize("release", ["3.5.9", "4.0.5", "4.1.4", "4.2.1", "4.3.0"])
def test_pairs_that_spark_has_seen_are_dropped(release: str, tmp_path: Path) -> None:
    place = unpack(Golden(release, "dedup"), tmp_path)
    pairs = testing.stream("k string, r bigint")
    driver = testing.Driver(pairs.drop_duplicates(), checkpoint=place.checkpoint)
    seen = [(row["k"], row["r"]) for row in place.facts["output"]]
    assert sorted(driver.state()) == sorted(seen)
    driver.feed([*seen, ("k0", 1_000)])
    assert driver.run() == [{"k": "k0", "r": 1_000}]
    assert min(driver.output_by_epoch) == max(place.facts["commits"]) + 1
    driver.restart()
    driver.feed([("k0", 1_000)])
    assert driver.run() == []
