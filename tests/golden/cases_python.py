"""State kept by Python functions: applyInPandasWithState and transformWithStateInPandas."""

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from tests.golden.inputs import events, json_rows, over_events, read_events
from tests.golden.place import Place
from tests.golden.shape import CHANGELOG, ROCKSDB, UNIQUE_IDS, Read

HOUR_MS = 3_600_000


def running_totals(spark: SparkSession, place: Place) -> DataFrame:
    rows = read_events(spark, place, "events")
    return rows.groupBy("k").applyInPandasWithState(
        _add_up, "k STRING, n LONG, total LONG", "n LONG, total LONG", "update", "EventTimeTimeout"
    )


def _add_up(key: Any, frames: Iterable[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
    n, total = state.get if state.exists else (0, 0)
    for frame in frames:
        n += len(frame)
        total += int(frame["v"].sum())
    state.update((n, total))
    state.setTimeoutTimestamp(state.getCurrentWatermarkMs() + HOUR_MS)
    yield pd.DataFrame({"k": [key[0]], "n": [n], "total": [total]})


def _processor(*, ttl_ms: int | None, timers: bool) -> Any:
    """Built on demand: 3.5 has no StatefulProcessor to inherit from."""
    from pyspark.sql.streaming import StatefulProcessor

    class Totals(StatefulProcessor):  # type: ignore[misc]
        """Counts rows, remembers the last values, and counts per remainder."""

        def init(self, handle: Any) -> None:
            self.handle = handle
            self.total = handle.getValueState("total", "n LONG, total LONG", ttl_ms)
            self.recent = handle.getListState("recent", "v LONG", ttl_ms)
            self.seen = handle.getMapState("seen", "r STRING", "n LONG", ttl_ms)

        def handleInputRows(
            self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any
        ) -> Iterator[pd.DataFrame]:
            n, total = self.total.get() or (0, 0)
            values = [int(v) for frame in rows for v in frame["v"]]
            for value in values:
                remainder = (f"r{value % 3}",)
                before = self.seen.getValue(remainder)
                self.seen.updateValue(remainder, ((before[0] if before else 0) + 1,))
                self.recent.appendValue((value,))
            n, total = n + len(values), total + sum(values)
            self.total.update((n, total))
            if timers:
                now = timerValues.getCurrentProcessingTimeInMs() if ttl_ms else 0
                at = now or timerValues.getCurrentWatermarkInMs()
                self.handle.registerTimer(at + (HOUR_MS if ttl_ms else 90_000))
            yield pd.DataFrame({"k": [key[0]], "n": [n], "total": [total]})

        def handleExpiredTimer(
            self, key: Any, timerValues: Any, expiredTimerInfo: Any
        ) -> Iterator[pd.DataFrame]:
            yield from ()

        def close(self) -> None:
            pass

    return Totals()


def _transformed(rows: DataFrame, processor: Any, time: str) -> DataFrame:
    return rows.groupBy("k").transformWithStateInPandas(
        statefulProcessor=processor,
        outputStructType="k STRING, n LONG, total LONG",
        outputMode="Update",
        timeMode=time,
    )


def event_timers(spark: SparkSession, place: Place) -> DataFrame:
    rows = read_events(spark, place, "events")
    return _transformed(rows, _processor(ttl_ms=None, timers=True), "EventTime")


def expiring(spark: SparkSession, place: Place) -> DataFrame:
    rows = json_rows(spark, place, "events")
    return _transformed(rows, _processor(ttl_ms=24 * HOUR_MS, timers=True), "ProcessingTime")


VARIABLES = tuple(Read({"stateVarName": name}) for name in ("total", "recent", "seen"))
TIMERS = Read({"readRegisteredTimers": "true"})

by_key = partial(over_events, mode="update", key=("k",), since="4.0")
with_variables = partial(by_key, files=events("events", files=10), reads=(*VARIABLES, TIMERS))

CASES = (
    by_key("pandas_state", "applyInPandasWithState with an event-time timeout", running_totals),
    with_variables(
        "transform",
        "transformWithStateInPandas: value, list and map state, event-time timers",
        event_timers,
        conf=ROCKSDB,
    ),
    with_variables(
        "transform_ttl",
        "transformWithStateInPandas with TTL and processing-time timers, changelogs",
        expiring,
        files=events("events", files=9, one_per_step=True),
        conf=CHANGELOG,
        trigger={"once": True},
    ),
    with_variables(
        "transform_ids",
        "transformWithStateInPandas on RocksDB checkpoint format 2",
        event_timers,
        conf={**CHANGELOG, **UNIQUE_IDS},
    ),
    with_variables(
        "transform_avro",
        "transformWithStateInPandas with state rows encoded as Avro",
        event_timers,
        conf={**CHANGELOG, "spark.sql.streaming.stateStore.encodingFormat": "avro"},
    ),
)
