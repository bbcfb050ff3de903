"""PySpark's processors, unchanged, without Spark: contract, timers, time to live, initial state."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import IntegerType
from tests.unit.continuous.operators.driving import Driver, at_ms, columns, table

from epochal.continuous.operators.contract import Moment
from epochal.continuous.operators.processor.row_api import RowApi
from epochal.continuous.operators.processor.state_values import row_class
from epochal.continuous.operators.processor.transform_with_state import TransformWithStateSpec
from epochal.errors import OptionError

pytestmark = pytest.mark.usefixtures("state_in")

INPUT = columns(id=pa.string(), v=pa.int64())
OUTPUT = columns(id=pa.string(), out=pa.string())


def said(key: Any, *what: Any) -> Row:
    return Row(id=key[0], out=" ".join(map(str, what)))


def spec(processor: Any, **options: Any) -> TransformWithStateSpec:
    schema = options.pop("input_schema", INPUT)
    return TransformWithStateSpec.plan(processor, ["id"], schema, OUTPUT, **options)


def outs(rows: list[dict[str, Any]]) -> list[str]:
    return [row["out"] for row in rows]


class Probe(StatefulProcessor):  # type: ignore[misc]
    """Calls a function of the test, with a state variable of each kind."""

    def __init__(
        self,
        body: Callable[..., Any],
        expired: Callable[..., Any] | None = None,
        ttl: int | None = None,
        schema: str = "n int, s string",
    ) -> None:
        self.body, self.expired, self.ttl, self.schema = body, expired, ttl, schema

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.value = handle.getValueState("value", self.schema, self.ttl)
        self.list = handle.getListState("list", self.schema, self.ttl)
        self.map = handle.getMapState("map", "k string", self.schema, self.ttl)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Any:
        return self.body(self, key, rows, timerValues)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        assert self.expired is not None
        return self.expired(self, key, timerValues, expiredTimerInfo)


def probe(body: Callable[..., Any], **options: Any) -> Driver:
    given = {k: options.pop(k) for k in ("expired", "ttl", "schema") if k in options}
    return Driver(spec(Probe(body, **given), **options))


def run(body: Callable[[Any], Any], **options: Any) -> Any:
    """Call `body` once with the processor and return its result."""

    def handle(self: Any, key: Any, rows: Any, times: Any) -> Any:
        yield said(key, repr(body(self)))

    (row,) = probe(handle, **options).turn(table(INPUT, [("a", 1)]))
    return eval(row["out"], {"Row": Row, "datetime": __import__("datetime")})


class Count(StatefulProcessor):  # type: ignore[misc]
    def init(self, handle: Any) -> None:
        self.seen = handle.getValueState("seen", "n int")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        found = self.seen.get()
        total = (found[0] if found else 0) + sum(1 for _ in rows)
        self.seen.update((total,))
        yield said(key, total)


def test_a_processor_lives_for_one_epoch_and_is_closed_at_the_cut() -> None:
    class Living(StatefulProcessor):  # type: ignore[misc]
        calls = 0

        def init(self, handle: Any) -> None:
            self.handle = handle

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
            self.calls += 1
            yield said(key, self.calls)

        def close(self) -> None:
            if self.calls > 2:
                raise ValueError("closed")

    driver = Driver(spec(Living()))
    assert outs(driver.turn(table(INPUT, [("a", 1), ("b", 1)]))) == ["1", "2"]
    driver.cut()
    assert outs(driver.turn(table(INPUT, [("a", 1), ("b", 1)]))) == ["1", "2"]
    assert outs(driver.turn(table(INPUT, [("a", 1)]))) == ["3"]
    with pytest.raises(ValueError, match="closed"):
        driver.cut()


def test_output_is_matched_by_name_and_a_missing_column_is_null() -> None:
    def body(self: Any, key: Any, rows: Any, times: Any) -> Any:
        yield Row(out="x", extra=1, id="y")
        yield Row(out="only")

    assert probe(body).turn(table(INPUT, [("a", 1)])) == [
        {"id": "y", "out": "x"},
        {"id": None, "out": "only"},
    ]


def test_rows_may_be_of_a_class_of_rows() -> None:
    made = Row("id", "out")
    result = [made("a", "b"), Row(id="c", out="d"), made("e")]
    assert probe(lambda *_: result).turn(table(INPUT, [("a", 1)])) == [
        {"id": "a", "out": "b"},
        {"id": "c", "out": "d"},
        {"id": "e", "out": None},
    ]
    assert len(probe(lambda *_: result[:2]).turn(table(INPUT, [("a", 1)]))) == 2


@pytest.mark.parametrize(
    ("result", "error"),
    [
        (None, TypeError),
        ([("a", "b")], AttributeError),
        ([Row("a", "b")], Exception),
        ([Row(id="a", out=5)], pa.ArrowTypeError),
    ],
)
def test_output_that_is_not_a_named_row_is_an_error(result: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        probe(lambda self, *_: result).turn(table(INPUT, [("a", 1)]))


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda p: p.value.update((1,)), "STRUCT_ARRAY_LENGTH_MISMATCH"),
        (lambda p: p.list.put([]), "ILLEGAL_STATE_STORE_VALUE.EMPTY_LIST_VALUE"),
        (lambda p: p.list.appendList([]), "ILLEGAL_STATE_STORE_VALUE.EMPTY_LIST_VALUE"),
        (lambda p: p.handle.getValueState("late", "n int"), "INVALID_HANDLE_STATE"),
        (lambda p: p.handle.deleteIfExists("value"), "INVALID_HANDLE_STATE"),
        (lambda p: p.handle.registerTimer(1), "INVALID_TIME_MODE"),
        (lambda p: p.handle.deleteTimer(1), "INVALID_TIME_MODE"),
    ],
)
def test_what_spark_rejects_is_rejected_with_the_same_condition(call: Any, text: str) -> None:
    with pytest.raises(PySparkRuntimeError, match=text):
        run(call)


@pytest.mark.parametrize("given", [None, 5])
def test_a_value_that_cannot_be_iterated_is_a_type_error(given: Any) -> None:
    with pytest.raises(TypeError):
        run(lambda p: p.value.update(given))


class Declares(StatefulProcessor):  # type: ignore[misc]
    def __init__(self, declare: Callable[[Any], Any]) -> None:
        self.declare = declare

    def init(self, handle: Any) -> None:
        self.kept = self.declare(handle)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        self.kept.update((1,))
        return iter(())


@pytest.mark.parametrize(
    ("declare", "text"),
    [
        (lambda h: h.getValueState("$x", "n int"), "RESERVED_CHARS"),
        (lambda h: h.getValueState("default", "n int"), "INVALID_NAME"),
        (lambda h: h.getValueState(" ", "n int"), "INVALID_NAME"),
        (lambda h: h.getValueState("x", "int"), "a type is missing"),
        (lambda h: h.getValueState("x", IntegerType()), "expected a struct"),
        (lambda h: h.getValueState("x", "n int", -1), "TTL_DURATION_MUST_BE_POSITIVE"),
        (lambda h: [h.getValueState("x", "n int") for _ in range(2)], "DUPLICATE_STATE_VARIABLE"),
        (lambda h: h.registerTimer(1), "INVALID_HANDLE_STATE"),
        (lambda h: h.getValueState("x", "n int").update((1,)), "no grouping key is set"),
    ],
)
def test_a_wrong_declaration_is_rejected_when_the_query_is_planned(declare: Any, text: str) -> None:
    with pytest.raises(PySparkRuntimeError, match=text):
        spec(Declares(declare), time_mode="processingtime")


def test_a_time_to_live_needs_processing_time_and_zero_means_none() -> None:
    def ttl(ms: int) -> Any:
        return Declares(lambda h: h.getValueState("x", "n int", ms))

    with pytest.raises(PySparkRuntimeError, match="INCORRECT_TIME_MODE_TO_ASSIGN_TTL"):
        spec(ttl(1), time_mode="EventTime")
    assert spec(ttl(0), time_mode="EventTime").variables[0].ttl_ms == 0


@pytest.mark.parametrize(
    ("declare", "use", "text"),
    [
        ("getValueState", lambda s: s.exists(), "checking value state exists: Value state temp"),
        ("getValueState", lambda s: s.get(), "getting value state: Value state temp"),
        ("getListState", lambda s: s.appendValue((1,)), "updating value state: List state temp"),
        ("getMapState", lambda s: s.getValue((1,)), "getting value: Map state temp"),
    ],
)
def test_using_a_deleted_variable_is_an_error(declare: str, use: Any, text: str) -> None:
    class Deletes(StatefulProcessor):  # type: ignore[misc]
        def init(self, handle: Any) -> None:
            schemas = ["n int", "n int"] if declare == "getMapState" else ["n int"]
            self.temp = getattr(handle, declare)("temp", *schemas)
            handle.deleteIfExists("temp")

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
            return [said(key, use(self.temp))]

    made = spec(Deletes())
    assert made.stores == ()
    with pytest.raises(PySparkRuntimeError, match=f"Error {text} is not initialized"):
        Driver(made).turn(table(INPUT, [("a", 1)]))


def test_an_iterator_over_a_deleted_variable_is_empty() -> None:
    class Deletes(StatefulProcessor):  # type: ignore[misc]
        def init(self, handle: Any) -> None:
            self.gone = [
                handle.getListState("l", "n int"),
                handle.getMapState("m", "n int", "n int"),
            ]
            handle.deleteIfExists("l")
            handle.deleteIfExists("m")

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
            listed, mapped = self.gone
            yield said(key, list(listed.get()), list(mapped.iterator()), list(mapped.values()))

    assert outs(Driver(spec(Deletes())).turn(table(INPUT, [("a", 1)]))) == ["[] [] []"]


def test_state_cannot_be_used_in_close() -> None:
    class Closing(Count):
        def close(self) -> None:
            if getattr(self, "worked", False):
                self.seen.get()

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
            self.worked = True
            return iter(())

    driver = Driver(spec(Closing()))
    driver.turn(table(INPUT, [("a", 1)]))
    with pytest.raises(PySparkRuntimeError, match="no grouping key is set"):
        driver.cut()


def test_the_output_mode_complete_and_an_unknown_time_mode_are_refused() -> None:
    with pytest.raises(OptionError, match="Append or Update"):
        spec(Count(), output_mode="Complete")
    with pytest.raises(OptionError, match="'ProcessingTime'"):
        spec(Count(), time_mode="Wall")


def test_without_a_time_mode_there_are_no_times() -> None:
    def body(self: Any, key: Any, rows: Any, times: Any) -> Any:
        yield said(key, times.getCurrentProcessingTimeInMs(), times.getCurrentWatermarkInMs())

    assert outs(probe(body).turn(table(INPUT, [("a", 1)]), now_ms=5)) == ["-1 -1"]
    timed = probe(body, time_mode="ProcessingTime")
    assert outs(timed.turn(table(INPUT, [("a", 1)]), now_ms=5)) == ["5 0"]


def test_due_timers_are_a_snapshot() -> None:
    def body(self: Any, key: Any, rows: Any, times: Any) -> Any:
        self.handle.registerTimer(10)
        self.handle.registerTimer(20)
        return iter(())

    def expired(self: Any, key: Any, times: Any, info: Any) -> Any:
        at = info.getExpiryTimeInMs()
        if at == 10:
            self.handle.deleteTimer(20)  # still fires in this turn
            self.handle.registerTimer(10)  # lost, because this timer is firing
            self.handle.registerTimer(15)  # already due, fires in the next turn
        yield said(key, at, list(self.handle.listTimers()))

    driver = probe(body, expired=expired, time_mode="ProcessingTime")
    first = outs(driver.turn(table(INPUT, [("a", 1)]), now_ms=100))
    assert first == ["10 [10, 15]", "20 [15]"]
    assert driver.operator.due_ms() == 15
    assert outs(driver.turn(None, now_ms=100)) == ["15 [15]"]
    assert driver.turn(None, now_ms=100) == []
    driver.cut()
    assert driver.state("$procTimers_keyToTimestamp") == {}


def test_a_list_is_rewritten_only_where_it_changed() -> None:
    def body(self: Any, key: Any, rows: Any, times: Any) -> Any:
        for row in rows:
            if row.v < 0:
                self.list.put([(n, "p") for n in range(-row.v)])
            elif row.v == 0:
                self.list.clear()
            else:
                self.list.appendValue((row.v, "a"))
        yield said(key, [each[0] for each in self.list.get()])

    driver = probe(body)

    def turn(*values: int) -> tuple[list[str], list[int], list[int]]:
        found = outs(driver.turn(table(INPUT, [("a", v) for v in values])))
        changes = next(each for each in driver.operator.cut(0) if each.store == "list")
        puts, removes = [key[1] for key, _ in changes.puts], [key[1] for key in changes.removes]
        return found, puts, removes

    assert turn(7, 8) == (["[7, 8]"], [0, 1], [])
    assert turn(9) == (["[7, 8, 9]"], [2], [])
    assert turn(-2) == (["[0, 1]"], [0, 1], [2])
    assert turn(0, 5) == (["[5]"], [0], [1])
    assert turn(0) == (["[]"], [], [0])
    assert turn(6) == (["[6]"], [0], [])


def test_a_list_iterator_reads_the_list_when_its_first_element_is_requested() -> None:
    def body(self: Any) -> Any:
        self.list.appendValue((1, "x"))
        early = self.list.get()
        self.list.appendValue((2, "x"))
        first = next(early)
        self.list.appendValue((3, "x"))
        other = self.list.get()
        return [first[0], next(other)[0], [each[0] for each in early]]

    assert run(body) == [1, 1, [2]]


class Seeded(Count):
    def init(self, handle: Any) -> None:
        super().init(handle)
        self.handle = handle

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        start = initialState["n"]
        self.seen.update((int(start if isinstance(initialState, Row) else start.sum()),))
        self.handle.registerTimer(5)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        yield said(key, key.id, "expired")


INITIAL = pa.table({"id": ["b", "a", "z"], "n": pa.array([20, 10, 30], pa.int32())})


def test_initial_state_is_loaded_before_data_and_only_in_the_first_epoch() -> None:
    options = {"initial_state": INITIAL, "time_mode": "ProcessingTime"}
    driver = Driver(spec(Seeded(), **options), partitions=3)
    first = outs(driver.turn(table(INPUT, [("a", 1), ("c", 1)]), now_ms=5))
    assert sorted(first) == ["1", "11", "a expired", "b expired", "z expired"]
    driver.cut()
    driver.restart()
    assert outs(driver.turn(table(INPUT, [("a", 1), ("b", 1)]), now_ms=5)).count("12") == 1
    driver.cut()
    assert driver.state("seen") == {("a",): (12,), ("b",): (21,), ("z",): (30,), ("c",): (1,)}


def test_initial_state_is_stored_in_the_first_epoch_even_without_input() -> None:
    driver = Driver(spec(Seeded(), initial_state=INITIAL, time_mode="ProcessingTime"))
    driver.cut()
    assert driver.state("seen") == {("a",): (10,), ("b",): (20,), ("z",): (30,)}


def test_a_null_among_int_keys_turns_them_into_floats_in_pandas() -> None:
    class Keys(StatefulProcessor):  # type: ignore[misc]
        def init(self, handle: Any) -> None: ...

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
            yield pd.DataFrame({"id": ["x"], "out": [repr(key)]})

    schema = columns(id=pa.int32(), v=pa.int64())
    driver = Driver(spec(Keys(), pandas=True, input_schema=schema))
    assert outs(driver.turn(table(schema, [(1, 1), (None, 1)]))) == ["(nan,)", "(1.0,)"]
    assert outs(driver.turn(table(schema, [(1, 1)]))) == ["(1,)"]


def test_a_column_missing_from_a_frame_is_a_key_error_and_an_empty_frame_is_fine() -> None:
    class Gives(StatefulProcessor):  # type: ignore[misc]
        def __init__(self, frame: Any) -> None:
            self.frame = frame

        def init(self, handle: Any) -> None: ...

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
            yield self.frame

    def turn(frame: Any) -> Any:
        return Driver(spec(Gives(frame), pandas=True)).turn(table(INPUT, [("a", 1)]))

    assert turn(pd.DataFrame()) == []
    with pytest.raises(KeyError):
        turn(pd.DataFrame({"id": ["a"]}))


def test_state_of_a_nan_key_is_found_again() -> None:
    schema = columns(id=pa.float64(), v=pa.int64())

    class Floats(Count):
        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
            for row in super().handleInputRows(("x",), rows, timerValues):
                yield Row(id=repr(key[0]), out=row.out)

    driver = Driver(spec(Floats(), input_schema=schema))
    rows = [(float("nan"), 1), (1.0, 1), (None, 1), (float("nan"), 1)]
    found = [(each["id"], each["out"]) for each in driver.turn(table(schema, rows))]
    assert found == [("None", "1"), ("1.0", "1"), ("nan", "2")]
    driver.cut()
    driver.restart()
    assert outs(driver.turn(table(schema, [(float("nan"), 1)]))) == ["3"]


def test_a_timestamp_key_is_stored_as_spark_stores_it() -> None:
    schema = columns(id=pa.timestamp("us", tz="UTC"), v=pa.int64())

    class Stamped(Count):
        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
            for row in super().handleInputRows(("x",), rows, timerValues):
                yield Row(id=str(key[0].timestamp()), out=row.out)

    driver = Driver(spec(Stamped(), input_schema=schema))
    driver.turn(table(schema, [(at_ms(1500), 1)]))
    driver.cut()
    assert driver.state("seen") == {(1500000,): (1,)}


def test_unchanged_state_is_not_written() -> None:
    driver = Driver(spec(Probe(lambda *_: iter(())), time_mode="ProcessingTime"))
    driver.turn(table(INPUT, [("a", 1)]))
    at = Moment(1, -1, 0, -1)
    driver.operator.expire(at)
    assert all(not each.puts and not each.removes for each in driver.operator.cut(0))


def test_a_timer_set_and_deleted_in_one_epoch_leaves_no_trace() -> None:
    def body(self: Any, key: Any, rows: Any, times: Any) -> Any:
        for row in rows:
            (self.handle.registerTimer if row.v > 0 else self.handle.deleteTimer)(abs(row.v))
        return iter(())

    driver = probe(body, time_mode="ProcessingTime")

    def changes(*values: int) -> tuple[Any, Any]:
        driver.turn(table(INPUT, [("a", v) for v in values]))
        found = driver.operator.cut(0)[-1]
        return [key for key, _ in found.puts], found.removes

    assert changes(50, -50) == ([], [])
    assert changes(60) == ([(("a",), 60)], [])
    assert changes(-60, 60) == ([], [])
    assert changes(-60) == ([], [(("a",), 60)])


def test_a_row_behaves_like_pysparks_row() -> None:
    names = ["id", "count", "two words", "id", "asDict"]
    values = (1, 2, 3, 4, 5)
    ours, theirs = tuple.__new__(row_class(names), values), Row(*names)(*values)
    assert (ours.id, ours["id"], ours["two words"]) == (
        theirs.id,
        theirs["id"],
        theirs["two words"],
    )
    assert ours.count(2) == theirs.count(2) == 1
    assert ours.asDict() == theirs.asDict()
    with pytest.raises(AttributeError):
        _ = ours.absent


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1, -(2**63), 2**63 - 1], pa.int64()),
        ([1, None], pa.int64()),
        ([1.5, 2], pa.int64()),
        ([1.5, float("inf")], pa.float64()),
        ([1, 2], pa.float64()),
        (["a"], pa.string()),
    ],
)
def test_output_becomes_the_same_column_as_with_arrow(values: list[Any], kind: pa.DataType) -> None:
    schema = pa.schema([("value", kind)])
    api = RowApi(["value"], schema, schema)
    (batch,) = api.output([Row(value=value) for value in values])
    assert batch.column(0).equals(pa.array(values, kind))
