"""Processors that Spark and the continuous engine both run, with rows or with pandas."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator
from decimal import Decimal
from typing import Any

import pandas as pd
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

OUTPUT = "id string, out string"
LOCAL = dt.datetime.fromisoformat("2024-05-06T07:08:09.000010")


class Both(StatefulProcessor):  # type: ignore[misc]
    """Rows are read as dicts and said as text, whichever API it is."""

    def __init__(self, *, pandas: bool) -> None:
        self.pandas = pandas

    def read(self, rows: Iterable[Any]) -> list[dict[str, Any]]:
        if self.pandas:
            return [each for frame in rows for each in frame.to_dict("records")]
        return [each.asDict() for each in rows]

    def said(self, key: Any, *lines: str) -> Iterator[Any]:
        if self.pandas:
            yield pd.DataFrame({"out": list(lines), "id": [key[0]] * len(lines)})
        else:
            for line in lines:
                yield Row(out=line, id=key[0])


class Ledger(Both):
    """Processing time: every kind of state, with and without a time to live, and timers."""

    TTL_MS = 900
    TIMER_MS = 500

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.seen = 0
        self.total = handle.getValueState("total", "n bigint, at timestamp")
        self.last = handle.getValueState("last", "n int", self.TTL_MS)
        self.recent = handle.getListState("recent", "n int, s string", self.TTL_MS)
        self.all = handle.getListState("all", "n int")
        self.counts = handle.getMapState("counts", "v int", "n int", self.TTL_MS)
        self.kept = handle.getMapState("kept", "v string", "n int")
        self.scratch = handle.getValueState("scratch", "n int")
        handle.deleteIfExists("scratch")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        now = timerValues.getCurrentProcessingTimeInMs()
        before = self.state()
        self.seen += 1
        for row in self.read(rows):
            value = int(row["v"])
            found = self.total.get()
            self.total.update(((found[0] if found else 0) + value, LOCAL))
            if value % 3 == 0:
                self.last.update((value,))
            self.recent.appendValue((value, str(value)))
            if value % 4 == 0:
                self.all.put([(value,), (value + 1,)])
            else:
                self.all.appendList([(value,)])
            found = self.counts.getValue((value % 5,))
            self.counts.updateValue((value % 5,), ((found.n if found else 0) + 1,))
            self.kept.updateValue((str(value % 7),), (value,))
            if value % 6 == 0:
                self.kept.removeKey((str((value + 1) % 7),))
            if value % 2:
                self.handle.registerTimer(now + self.TIMER_MS)
            elif value % 8 == 0:
                for at in sorted(self.handle.listTimers())[:1]:
                    self.handle.deleteTimer(at)
        try:
            self.scratch.get()
            gone = "there"
        except Exception as error:  # noqa: BLE001
            gone = type(error).__name__
        return self.said(key, f"{key!r} {self.seen} {gone}", before, self.state())

    def state(self) -> str:
        return repr(
            [
                self.total.get(),
                self.last.exists(),
                self.last.get(),
                list(self.recent.get()),
                self.recent.exists(),
                list(self.all.get()),
                sorted(self.counts.iterator()),
                self.counts.containsKey((1,)),
                self.counts.exists(),
                sorted(self.kept.iterator()),
                sorted(self.handle.listTimers()),
            ]
        )

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        at = expiredTimerInfo.getExpiryTimeInMs()
        if at % 2:
            self.handle.registerTimer(at + 7)  # due already, or soon
        self.all.clear()
        return self.said(key, f"fired {at} {type(key).__name__} {self.state()}")

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        rows = initialState.to_dict("records") if self.pandas else [initialState.asDict()]
        for row in rows:
            found = self.total.get()
            total = (found[0] if found else 0) + int(row["start"])
            self.total.update((total, LOCAL))
            self.recent.appendValue((int(row["start"]), "initial"))
        self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + 1)


class Stopwatch(Both):
    """Event time: timers by the watermark, late rows."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.rows = handle.getListState("rows", "at bigint")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        stamps = sorted(self.millis(row["ts"]) for row in self.read(rows))
        self.rows.appendList([(each,) for each in stamps])
        for each in stamps:
            self.handle.registerTimer(each + 5000)
        if len(stamps) > 2:
            self.handle.deleteTimer(stamps[0] + 5000)
        self.handle.registerTimer(3)  # long past
        return self.said(
            key,
            f"{timerValues.getCurrentWatermarkInMs()} {stamps} {list(self.rows.get())} "
            f"{sorted(self.handle.listTimers())}",
        )

    def millis(self, moment: Any) -> int:
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=dt.UTC)
        stamp: float = moment.timestamp()
        return round(stamp * 1000)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        at = expiredTimerInfo.getExpiryTimeInMs()
        if at % 2000 == 0:
            self.handle.registerTimer(at)
            self.handle.registerTimer(at - 1)
        pending = sorted(self.handle.listTimers())
        return self.said(key, f"fired {at} {timerValues.getCurrentWatermarkInMs()} {pending}")


class Coercions(Both):
    """What state makes of values that do not fit, and how it gives nested ones back."""

    GIVEN: tuple[tuple[str, Any], ...] = (
        ("i int, s string", ("5", 5)),
        ("i int, s string", (1.5, True)),
        ("i int, s string", (2**40, 1.5)),
        ("i int, s string", (2**70, 1e20)),
        ("i int, s string", (True, 1e-5)),
        ("i int, s string", (None, 12345678.9)),
        ("i int, s string", {"a": 1, "b": 2}),
        ("i int, s string", ["7", "8"]),
        ("b tinyint, h smallint", (200, 70000)),
        ("l bigint, d double", (2**63, 5)),
        ("f float, x boolean", (0.1, 1)),
        ("f float, y binary", (1, "text")),
        ("d decimal(5,2), b binary", (Decimal("1.005"), b"\x00\xff")),
        ("d decimal(5,2), b binary", (1, bytearray(b"ab"))),
        ("t timestamp, d date", (LOCAL, dt.date(2024, 5, 6))),
        ("n timestamp_ntz, s smallint", (LOCAL, -40000)),
        ("p struct<x:int,y:string>, a array<int>", ((1, "q"), [1, "2", None])),
        ("p struct<x:int,y:string>, a array<string>", ({"y": "q"}, (1, 2))),
        ("p struct<x:int,y:string>, m map<string,int>", (Row(x=3, y=4), {"k": 1.5})),
        ("m map<string,int>", ({"k": 2},)),
        ("a array<struct<x:int>>, m map<string,struct<x:int>>", ([(1,), None], {"k": (2,)})),
        ("a array<int>, m map<string,int>", ("text", [1])),
    )

    def init(self, handle: Any) -> None:
        self.values = [
            handle.getValueState(f"v{number}", schema)
            for number, (schema, _) in enumerate(self.GIVEN)
        ]
        self.map = handle.getMapState("map", "i int, s string", "p struct<x:int>")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        lines = []
        for state, (_, given) in zip(self.values, self.GIVEN, strict=True):
            state.update(given)
            found = state.get()
            lines.append(f"{found!r} {type(found).__name__} {state.exists()}")
        self.map.updateValue(("1", 2), ((5,),))
        found = self.map.getValue((None, "2"))
        lines.append(f"{found!r} {type(found).__name__} {sorted(map(repr, self.map.keys()))}")
        times = (timerValues.getCurrentProcessingTimeInMs(), timerValues.getCurrentWatermarkInMs())
        lines.append(f"{key!r} {times} {[sorted(each.items()) for each in self.read(rows)]}")
        return self.said((str(key[0]),), *lines)
