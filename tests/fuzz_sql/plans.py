"""Random plans: every operator that a stream can have, in the orders that Spark accepts.

A plan is a list of steps. The same plan is applied to a batch and to a stream. Expressions are such
that they never fail and do not depend on the order of rows, so the result of a batch over all rows
is what the stream must have shown in the end. Sorting and limits of a complete result are missing:
they are refused here, though Spark has them.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from tests.fuzz_sql import plan_steps as steps
from tests.fuzz_sql.plan_steps import Inputs, PlanStep

SCHEMA = (
    "n bigint, k int, s string, d double, q decimal(18,4), ts timestamp, bo boolean, "
    "ai array<int>, st struct<a:int,b:string>"
)
START = datetime(2024, 3, 31, 0, tzinfo=UTC)
FLUSH = datetime(2030, 1, 1, tzinfo=UTC)
"""Rows of this time close all windows before it."""

LARGEST_DISORDER = 590
"""By how many seconds a row may be behind those before it: less than any watermark is."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Steps over the rows of one or two sources, and how the result is shown."""

    steps: tuple[PlanStep, ...]
    mode: str = "append"
    keys: tuple[str, ...] = ()
    """Of an aggregation: in output mode update the last row of a key counts."""
    times: tuple[str, ...] = ()
    """If a row in the future must close the result: columns with the time of a result's row. The
    first that is not null counts."""

    def apply(self, inputs: Inputs) -> DataFrame:
        frame = inputs.rows
        for step in self.steps:
            frame = step.apply(frame, inputs)
        return frame

    def smaller(self) -> Iterator[Plan]:
        """The same plan with less in it: without a step, or without an aggregate."""
        for number, step in enumerate(self.steps):
            others = [*step.smaller()] if step.needed else [None]
            for other in others:
                changed = () if other is None else (other,)
                yield replace(
                    self, steps=(*self.steps[:number], *changed, *self.steps[number + 1 :])
                )

    def __str__(self) -> str:
        return f"{self.mode}: df{''.join(map(str, self.steps))}"


def rows_of(chance: random.Random, count: int) -> pa.Table:
    """Rows about in the order of their times."""

    def maybe(value: Any) -> Any:
        return None if chance.random() < 0.15 else value

    doubles = [0.0, -0.0, 1.5, float("nan"), float("inf"), -2.5, 1e300]
    words = ["", "a", "B", "é", "😀", "ß", "a b"]
    disorder = chance.choice((0, LARGEST_DISORDER))
    moments = [chance.randint(0, 7200) for _ in range(count)]
    moments.sort(key=lambda moment: moment + chance.randint(0, disorder))
    rows = [
        {
            "n": number,
            "k": maybe(chance.randint(0, 4)),
            "s": maybe(chance.choice(words)),
            "d": maybe(chance.choice(doubles)),
            "q": maybe(chance.randint(-(10**6), 10**6) / 4),
            "ts": START + timedelta(seconds=moments[number]),
            "bo": maybe(chance.random() < 0.5),
            "ai": maybe([maybe(chance.randint(0, 3)) for _ in range(chance.randint(0, 3))]),
            "st": maybe({"a": maybe(chance.randint(0, 3)), "b": maybe(chance.choice(words))}),
        }
        for number in range(count)
    ]
    return pa.Table.from_pylist(rows, _ARROW)


_FIELDS: list[tuple[str, Any]] = [
    ("n", pa.int64()),
    ("k", pa.int32()),
    ("s", pa.string()),
    ("d", pa.float64()),
    ("q", pa.float64()),
    ("ts", pa.timestamp("us", "UTC")),
    ("bo", pa.bool_()),
    ("ai", pa.list_(pa.int32())),
    ("st", pa.struct([("a", pa.int32()), ("b", pa.string())])),
]
_ARROW = pa.schema(_FIELDS)  # fmt: skip

CONDITIONS = (
    "k > 1", "k IS NULL OR k <> 2", "s IS NOT NULL", "upper(s) = 'A'", "d > 0", "NOT isnan(d)",
    "q < 1000", "size(ai) > 1", "st.a = 2", "bo", "hour(ts) >= 1", "array_contains(ai, 1)",
    "coalesce(bo, false)", "s LIKE 'a%'", "n % 3 <> 0", "true", "k IN (1, 3)", "length(s) < 2",
    "k IN (SELECT k FROM names)", "k > (SELECT min(k) FROM names)",
)  # fmt: skip
COLUMNS = {
    "k": ("k + 1", "k % 3", "coalesce(k, -1)", "cast(size(ai) AS int)", "CASE WHEN bo THEN k END"),
    "s": ("upper(s)", "concat(s, '-', k)", "st.b", "cast(d AS string)", "date_format(ts, 'HH:mm')",
          "concat_ws(',', cast(ai AS array<string>))", "initcap(s)", "to_json(st)"),
    "d": ("d * 2", "round(d, 1)", "cast(k AS double)", "nanvl(d, 0)", "-d"),
    "q": ("cast(q + 1 AS decimal(18,4))", "cast(round(q, 1) AS decimal(18,4))"),
    "ai": ("sort_array(ai)", "transform(ai, x -> x + 1)", "array(k, 1)", "array_distinct(ai)"),
    "st": ("named_struct('a', k, 'b', s)", "if(bo, st, null)"),
    "bo": ("k > 2", "s IS NULL", "NOT bo"),
}  # fmt: skip
"""For a column, expressions of its type."""

MEASURES = (
    'count(*) AS c', 'sum(k) AS sk', 'min(s) AS ms', 'max(d + 0D) AS md', 'avg(k) AS ak',
    'sum(q) AS sq', 'count(s) AS cs', 'max(ts) AS mt', 'bool_or(bo) AS b', 'min(st.a) AS sa',
    'count_if(bo) AS ci', 'max(q) AS mq', 'sum(size(ai)) AS sz', 'bit_xor(k) AS bx',
    'count(*) FILTER (WHERE k > 1) AS cf', 'sum(q) FILTER (WHERE bo) AS sf', 'max(st) AS mst',
    'sum(k) + count(*) AS both', 'try_avg(q) AS aq', 'max(struct(k, s)) AS mks',
)  # fmt: skip
"""Aggregates that Arrow can evaluate, and some of Spark's code."""

BUFFERED = (
    'percentile(k, 0.3) AS p', 'median(k) AS med', 'mode(k, true) AS mo',
    'array_size(array_agg(k)) AS aa',
    'sort_array(collect_list(k)) AS cl', 'sort_array(collect_set(s)) AS css',
    "listagg(s, ',') WITHIN GROUP (ORDER BY s) AS la", 'approx_count_distinct(s) AS acd',
    'max_by(s, struct(n, s)) AS mbs', 'min_by(k, struct(n, k)) AS mbk',
    'percentile_approx(k, 0.5) AS pa',
    'aggregate(histogram_numeric(k, 99), 0D, (sum, bin) -> sum + bin.x * bin.y) AS hn',
    'count_min_sketch(k, 0.5D, 0.5D, 1) AS cms', 'hll_sketch_estimate(hll_sketch_agg(s)) AS hll',
    'round(stddev(k), 6) AS sd', 'round(corr(k, n), 6) AS co', 'regr_count(k, n) AS rc',
    'sort_array(collect_list(s) FILTER (WHERE bo)) AS clf',
    'mode() WITHIN GROUP (ORDER BY k) AS mg',
    'percentile_cont(0.5) WITHIN GROUP (ORDER BY k DESC) AS pc',
)  # fmt: skip
"""Aggregates with Spark's own buffers. What would depend on the order of rows is sorted."""

KEYS = ("k", "s", "bo", "d", "k % 2 AS half", "upper(s) AS u", "st", "length(s) AS len", "q",
        "ai", "date_trunc('HOUR', ts) AS h", "struct(k, s) AS ks")  # fmt: skip
GENERATORS = ("explode(ai) AS k", "explode_outer(ai) AS k", "explode(array(k, n)) AS k",
              "explode(split(s, '')) AS s", "explode(sequence(0, coalesce(k, 0))) AS k",
              "stack(2, k, k + 1) AS k")  # fmt: skip
WINDOWS = (
    "'10 minutes'",
    "'1 hour', '20 minutes'",
    "'7 minutes'",
    "'1 hour', '1 hour', '5 minutes'",
)
GAPS = ("'5 minutes'", "CASE WHEN k = 1 THEN '2 minutes' ELSE '6 minutes' END")
RESULTS = (
    "hash({}) AS x",
    "to_json(struct({})) AS x",
    "{} IS NULL AS x",
    "size(array({0}, {0})) AS x",
)
"""What is computed from an aggregate."""


class Planner:
    """Makes plans that Spark accepts in a stream."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance

    def plan(self) -> Plan:
        """A plan of one to about ten steps."""
        made: Plan = self._pick(
            (self._rows, self._totals, self._totals, self._windows, self._windows, self._sessions,
             self._windows_of_windows, self._joined_windows, self._distinct, self._duplicates,
             self._join, self._join, self._joined_totals, self._limit)
        )()  # fmt: skip
        return made

    def _pick(self, values: Sequence[Any]) -> Any:
        return self._chance.choice(values)

    def _is(self, share: float) -> bool:
        return self._chance.random() < share

    # Plans without a watermark.

    def _rows(self) -> Plan:
        made = (*self._row_steps(4), self._row_step())
        return Plan(
            (*made, PlanStep(steps.union_streams, (self._pick(CONDITIONS),)))
            if self._is(0.2)
            else made
        )

    def _totals(self) -> Plan:
        how = self._pick(("groupBy", "groupBy", "groupBy", "rollup", "cube"))
        keys = self._chance.sample(KEYS, self._chance.randint(how != "groupBy", 2))
        measures = self._measures(4)
        if how != "groupBy":
            measures.append(steps.GROUPING)
        mode = self._pick(("complete", "update"))
        made = [*self._row_steps(4), _aggregation(how, keys, measures)]
        names = _names(keys) + ("gid",) * (how != "groupBy")
        return self._with_results(made, mode, names, measures)

    def _distinct(self) -> Plan:
        columns = self._chance.sample(["k", "s", "bo", "q", "st", "ai"], 2)
        last = PlanStep(steps.drop_duplicates, (columns,), needed=True)
        return Plan((*self._row_steps(4), last), self._pick(("append", "update")), tuple(columns))

    def _limit(self) -> Plan:
        last = PlanStep(steps.limit, (self._chance.randint(0, 30),), needed=True)
        return Plan((*self._row_steps(3), last))

    # Plans with a watermark.

    def _windows(self) -> Plan:
        keys = [f"window(ts, {self._pick(WINDOWS)}) AS w", self._pick(KEYS)]
        measures = self._measures(3)
        mode = self._pick(("append", "append", "update", "complete"))
        made = [*self._timed(3), _aggregation("groupBy", keys, measures)]
        if mode == "append" and self._is(0.3):
            measure = _names(measures)[0]
            conditions = (f"{measure} IS NOT NULL", f"hash({measure}) % 2 = 0")
            last = self._pick(
                (
                    PlanStep(steps.union, conditions),
                    PlanStep(steps.drop_duplicates, (["w", measure],)),
                )
            )
            return Plan((*made, last), times=("w.start",))
        return self._with_results(made, mode, _names(keys), measures, "w.start")

    def _sessions(self) -> Plan:
        keys = [f"session_window(ts, {self._pick(GAPS)}) AS w", self._pick(KEYS)]
        measures = self._measures(3)
        mode = self._pick(("append", "append", "complete"))
        made = [*self._timed(3), _aggregation("groupBy", keys, measures)]
        return self._with_results(made, mode, _names(keys), measures, "w.start")

    def _windows_of_windows(self) -> Plan:
        """An aggregation of windows, or of sessions, over an aggregation of shorter windows."""
        keys = [f"window(ts, {self._pick(WINDOWS)}) AS w", self._pick(KEYS)]
        first = _aggregation("groupBy", keys, ["count(*) AS c", "max(k) AS mk", "min(s) AS ms"])
        outer = self._pick(("window(w, '2 hours') AS v", "window(w, '1 hour', '30 minutes') AS v"))
        most = self._pick(("collect_list(mk)", "collect_set(ms)"))
        second = ["count(*) AS cc", "sum(c) AS sc", f"sort_array({most}) AS ms"]
        made = [
            *self._timed(3),
            first,
            *self._where_result("c", 0.3),
            _aggregation("groupBy", [outer], second),
        ]
        return self._with_results(made, "append", ("v",), second, "v.start")

    def _joined_windows(self) -> Plan:
        size = self._pick(WINDOWS)
        measures = self._measures(2)
        first = _aggregation("groupBy", [f"window(ts, {size}) AS w", "k"], measures)
        join = PlanStep(steps.join_windows, (self._pick(("inner", "left")), size), needed=True)
        made = [*self._timed(2), first, *self._where_result(_names(measures)[0], 0.3), join]
        return self._with_results(made, "append", ("w", "k", "w2", "k2"), measures, "w.start")

    def _duplicates(self) -> Plan:
        keys = self._pick((["k", "ts"], ["s", "bo", "ts"], ["n", "ts"]))
        if self._is(0.4):
            made = [
                *self._timed(3, "10 hours"),
                PlanStep(steps.drop_within_watermark, (keys,), needed=True),
            ]
        else:
            made = [*self._timed(3), PlanStep(steps.drop_duplicates, (keys,), needed=True)]
            if self._is(0.5):
                measures = ["count(*) AS c", f"max({keys[0]}) AS mk"]
                made.append(
                    _aggregation("groupBy", [f"window(ts, {self._pick(WINDOWS)}) AS w"], measures)
                )
                return self._with_results(made, "append", ("w",), measures, "w.start")
        return Plan(tuple(made), times=("ts",))

    def _join(self) -> Plan:
        how = self._pick(("inner", "left", "right", "full", "left_semi"))
        made = [*self._timed(2), self._stream_join(how), *self._where_result("s", 0.2)]
        if how in ("inner", "left") and self._is(0.4):
            columns = ["k", "s", "s2", "ts"]
            made.append(PlanStep(steps.drop_duplicates, (columns,), needed=True))
        elif self._is(0.3):
            made.append(PlanStep(steps.with_column, ("x", "hash(k, s, d)")))
        times = {"right": ("ts2",), "full": ("ts", "ts2")}.get(how, ("ts",))
        return Plan(tuple(made), times=times)

    def _joined_totals(self) -> Plan:
        """An aggregation by window over a join of streams."""
        keys = [f"window(ts, {self._pick(WINDOWS)}) AS w", self._pick(KEYS)]
        measures = ["sum(n2) AS sn", *self._measures(2)]
        how = self._pick(("inner", "left"))
        made = [*self._timed(2), self._stream_join(how), _aggregation("groupBy", keys, measures)]
        return self._with_results(made, "append", _names(keys), measures, "w.start")

    # Parts of plans.

    def _stream_join(self, how: str) -> PlanStep:
        keys = self._pick(
            ("k = k2", "k = k2 AND s = s2", "d = d2", "k <=> k2 AND n < n2", "k + 1 = k2")
        )
        return PlanStep(
            steps.join_streams, (how, self._is(0.4), self._pick(CONDITIONS), keys), needed=True
        )

    def _with_results(
        self,
        made: list[PlanStep],
        mode: str,
        keys: tuple[str, ...],
        measures: list[str],
        *times: str,
    ) -> Plan:
        """A plan that goes on with the results of an aggregation."""
        measure = _names(measures)[0]
        if self._is(0.3):
            made.append(PlanStep(steps.select, ("*", self._pick(RESULTS).format(measure))))
        if mode != "update":
            made += self._where_result(measure, 0.2)
        if "k" in keys and self._is(0.4):
            made.append(PlanStep(steps.name_keys, (self._pick(("inner", "left", "left_semi")),)))
            keys = (*keys, "name") if made[-1].arguments != ("left_semi",) else keys
        return Plan(tuple(made), mode, keys, times)

    def _where_result(self, measure: str, share: float) -> list[PlanStep]:
        condition = self._pick((f"{measure} IS NOT NULL", f"hash({measure}) % 3 <> 0"))
        return [PlanStep(steps.where, (condition,))] if self._is(share) else []

    def _measures(self, most: int) -> list[str]:
        """Most aggregations have only functions that are ours, or both kinds."""
        names = MEASURES if self._is(0.4) else MEASURES + BUFFERED
        return self._some(most, names)

    def _some(self, most: int, values: Sequence[str]) -> list[str]:
        return self._chance.sample(values, self._chance.randint(1, most))

    def _timed(self, most: int, delay: str = steps.DELAY) -> list[PlanStep]:
        """A watermark and steps without state."""
        return [PlanStep(steps.watermark, (delay,), needed=True), *self._row_steps(most)]

    def _row_steps(self, most: int) -> list[PlanStep]:
        return [self._row_step() for _ in range(self._chance.randint(0, most))]

    def _row_step(self) -> PlanStep:
        """A step that keeps the columns and their types."""
        match self._pick(("where",) * 4 + ("column",) * 4 + ("generate", "join", "union", "other")):
            case "where":
                return PlanStep(steps.where, (self._pick(CONDITIONS),))
            case "column":
                name = self._pick(list(COLUMNS))
                return PlanStep(steps.with_column, (name, self._pick(COLUMNS[name])))
            case "generate":
                return PlanStep(steps.generate, (self._pick(GENERATORS),))
            case "join":
                how = self._pick(("inner", "left", "left_semi", "left_anti", "right"))
                return PlanStep(steps.join_table, (how, "s"))
            case "union":
                return PlanStep(steps.union, tuple(self._chance.sample(CONDITIONS, 2)))
        if self._is(0.3):
            return PlanStep(self._pick((steps.in_python, steps.count_in_python)))
        return PlanStep(steps.observe, (f"seen {self._chance.randrange(10**6)}",))


def _aggregation(how: str, keys: list[str], measures: list[str]) -> PlanStep:
    return PlanStep(steps.aggregate, (how, keys, measures), needed=True)


def _names(texts: Sequence[str]) -> tuple[str, ...]:
    return tuple(text.rpartition(" ")[2] for text in texts)
