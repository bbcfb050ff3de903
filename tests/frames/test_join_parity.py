"""Stream-stream joins give, batch by batch, the output and the state of Spark's own."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.frames.join_runs import (
    PARTITIONS,
    Batch,
    File,
    Side,
    Stores,
    replace_state,
    rewound,
    run_spark,
    spark_state,
    store_of,
    turn,
)
from tests.spark.sessions import INTERPRETED, session_with
from tests.unit.continuous.operators.driving import Driver, columns, table

from epochal.continuous.catalyst.translation import read_plan
from epochal.continuous.operators.contract import Moment
from epochal.continuous.operators.expressions.expr import Call, Column, Expr, Literal
from epochal.continuous.operators.global_limit import GlobalLimitSpec
from epochal.continuous.operators.joins.join_bounds import Sides, value_watermark_ms
from epochal.continuous.operators.joins.static_join import Side as StaticSide
from epochal.continuous.operators.joins.static_join import StaticJoinSpec, StaticKind
from epochal.continuous.operators.joins.stream_join import JoinInput, Kind, StreamJoinSpec
from epochal.continuous.plan.logical import Stateful

pytestmark = pytest.mark.timeout(400)

TIME = pa.timestamp("us", tz="UTC")
WINDOW = pa.struct([("start", TIME), ("end", TIME)])
KINDS: tuple[Kind, ...] = ("inner", "left_outer", "right_outer", "full_outer", "left_semi")
DELAY = "4 seconds"
BEGIN = datetime(2024, 1, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def spark() -> SparkSession:
    partitions = {"spark.sql.shuffle.partitions": str(PARTITIONS)}
    return session_with({"spark.sql.session.timeZone": "UTC", **partitions, **INTERPRETED})


def second(number: float) -> datetime:
    return BEGIN + timedelta(seconds=number)


def call(function: str, *arguments: Expr) -> Call:
    return Call(function, arguments, pa.bool_())


def shifted(column: int, seconds: int) -> Expr:
    by = Literal(pa.scalar(seconds * 1_000_000, pa.duration("us")))
    return Call("TimestampAddInterval", (Column(column), by), TIME)


def both(first: Expr, second: Expr) -> Expr:
    return call("And", first, second)


@dataclass(frozen=True, slots=True)
class Form:
    """How two streams of (key, time, number) are joined."""

    sql: str
    """The condition of the join in Spark."""
    key: tuple[str, ...]
    condition: Expr | None = None
    windows: bool = False
    watermarks: tuple[bool, bool] = (True, True)
    pushed: Expr | None = None
    """The condition if Spark moves what concerns the left side alone in front of the join."""
    floats: bool = False
    needed: tuple[str, ...] = ("k",)
    """Columns that Spark's optimizer demands to be there on a side that is not preserved."""


WITHIN = both(
    call("GreaterThanOrEqual", Column(4), Column(1)),
    call("LessThanOrEqual", Column(4), shifted(1, 3)),
)
FORMS = {
    "key": Form("lk = rk AND lt = rt", ("k", "t"), needed=("k", "t")),
    "range": Form(
        "lk = rk AND rt >= lt AND rt <= lt + INTERVAL 3 SECONDS",
        ("k",),
        WITHIN,
        needed=("k", "t"),
    ),
    "range-one-side": Form(
        "lk = rk AND rt >= lt AND rt <= lt + INTERVAL 3 SECONDS AND lv > 2",
        ("k",),
        both(WITHIN, call("GreaterThan", Column(2), Literal(pa.scalar(2, pa.int64())))),
        pushed=WITHIN,
        needed=("k", "t"),
    ),
    "windows": Form("lk = rk AND lt = rt", ("k", "t"), windows=True, needed=("k", "t")),
    "no-watermark": Form("lk = rk", ("k",), watermarks=(False, False)),
    "one-watermark": Form(
        "lk = rk AND lt = rt", ("k", "t"), watermarks=(True, False), needed=("k", "t")
    ),
    "floats": Form(
        "lk = rk AND rt >= lt AND rt <= lt + INTERVAL 3 SECONDS",
        ("k",),
        WITHIN,
        floats=True,
        needed=("k", "t"),
    ),
    "numbers": Form(
        "lk = rk AND lv < rv",
        ("k",),
        call("LessThan", Column(2), Column(5)),
        needed=("k", "v"),
    ),
}


FLOATS = {"a": 0.0, "b": -0.0, "c": math.nan}


def random_files(seed: int, files: int, floats: bool) -> list[File]:
    rng = random.Random(seed)
    found = []
    for place in range(files):
        count = 0 if place == 3 and seed % 2 else rng.randrange(3, 12)
        rows = [random_row(rng, place) for _ in range(count)]
        if floats:
            rows = [(FLOATS.get(key), *rest) for key, *rest in rows]
        found.append(rows)
    return found


def random_row(rng: random.Random, place: int) -> tuple[Any, ...]:
    key = rng.choice(["a", "a", "b", "c", None])
    at = None if rng.random() < 0.08 else second(max(1, 4 * place + rng.randrange(-9, 4)))
    return (key, at, rng.randrange(6))


def spark_side(form: Form, side: int, files: list[File]) -> Side:
    letter = "lr"[side]

    def prepared(frame: DataFrame) -> DataFrame:
        if form.watermarks[side]:
            frame = frame.withWatermark(f"{letter}t", DELAY)
        if form.windows:
            window = F.window(f"{letter}t", "5 seconds").alias(f"{letter}t")
            frame = frame.select(f"{letter}k", window, f"{letter}v")
        return frame

    kind = "double" if form.floats else "string"
    return Side(f"{letter}k {kind}, {letter}t timestamp, {letter}v long", files, prepared)


CONDITIONS = (
    "lt < rt",
    "lt >= rt",
    "lt > rt + INTERVAL 10 SECONDS",
    "lt <= rt + INTERVAL '0.0015' SECOND",
    "lt - INTERVAL 1 DAY >= rt",
    "lt > rt + INTERVAL 1 SECOND + INTERVAL 1 SECOND",
    "cast(lt AS double) > cast(rt AS double) + 10.5D",
    "cast(lt AS long) > cast(rt AS long) - 10",
    "lt > rt AND lt < rt + INTERVAL 5 SECONDS",
    "lv < rv",
    "lt > TIMESTAMP '2024-01-01 00:00:00'",
    "year(lt) > 5",
    "lt > rt + INTERVAL 1 MONTH",
)
"""Conditions over a number and a time of either side."""


def preserved(kind: Kind) -> tuple[int, ...]:
    """The sides of which an outer join emits all rows."""
    return {"left_outer": (0,), "right_outer": (1,), "full_outer": (0, 1)}.get(kind, ())


def window_first(form: Form, kind: Kind) -> bool:
    """Whether the window is the first left column, as Spark's optimizer has it in a semi join.

    It moves the join below the projection that puts the columns in order.
    """
    return form.windows and kind == "left_semi"


def our_rows(form: Form, kind: Kind, side: int, rows: File) -> File:
    """The rows as Spark's optimizer passes them to the join."""
    if form.windows:
        rows = [(key, window_of(at), number) for key, at, number in rows if at is not None]
    if side in preserved(kind):
        return rows
    needed = ["ktv".index(name) for name in form.needed]
    if form.pushed is not None and side == 0:
        rows = [row for row in rows if row[2] > 2]
    rows = [row for row in rows if all(row[index] is not None for index in needed)]
    if window_first(form, kind) and side == 0:
        rows = [(window, key, number) for key, window, number in rows]
    return [row[: own_columns(form, kind, side)] for row in rows]


def own_columns(form: Form, kind: Kind, side: int) -> int:
    """Spark does not pass on columns that only a semi join's result would need."""
    return len(form.needed) if kind == "left_semi" and side == 1 else 3


def window_of(at: datetime) -> dict[str, datetime]:
    start = (at - BEGIN).total_seconds() // 5 * 5
    return {"start": second(start), "end": second(start + 5)}


def spec_of(form: Form, kind: Kind) -> StreamJoinSpec:
    schemas = []
    for side, letter in enumerate("lr"):
        time = WINDOW if form.windows else TIME
        key = pa.float64() if form.floats else pa.string()
        types = {f"{letter}k": key, f"{letter}t": time, f"{letter}v": pa.int64()}
        if window_first(form, kind) and side == 0:
            types = {"lt": time, **types}
        schemas.append(columns(**dict(list(types.items())[: own_columns(form, kind, side)])))
    left, right = (
        JoinInput(
            schema,
            len(schema),
            tuple(f"{letter}{name}" for name in form.key),
            f"{letter}t" if marked else None,
            4000,
        )
        for letter, schema, marked in zip("lr", schemas, form.watermarks, strict=True)
    )
    fields = list(schemas[0]) if kind == "left_semi" else [*schemas[0], *schemas[1]]
    condition = form.condition if 0 in preserved(kind) else form.pushed or form.condition
    return StreamJoinSpec(kind, left, right, condition, pa.schema(fields))


@dataclass(frozen=True, slots=True)
class Case:
    """A join, its input, and what Spark made of it."""

    form: Form
    kind: Kind
    spec: StreamJoinSpec
    files: tuple[list[File], list[File]]
    batches: list[Batch]
    place: Path

    def turn(self, driver: Driver, batch: Batch) -> list[str]:
        given = []
        if batch.file is not None:
            for side, schema in enumerate((self.spec.left.schema, self.spec.right.schema)):
                rows = self.files[side][batch.file]
                given.append((side, schema, our_rows(self.form, self.kind, side, rows)))
        return turn(driver, batch, given, self.finished)

    def finished(self, row: dict[str, Any]) -> dict[str, Any]:
        """What the query's result makes of a row of the join."""
        return {"lk": row["lk"], **row} if window_first(self.form, self.kind) else row

    def sides(self) -> tuple[Side, Side]:
        return (
            spark_side(self.form, 0, self.files[0]),
            spark_side(self.form, 1, self.files[1]),
        )

    def joined(self) -> Callable[[DataFrame, DataFrame], DataFrame]:
        return lambda left, right: left.join(right, F.expr(self.form.sql), self.kind)


def spark_case(
    spark: SparkSession, place: Path, name: str, kind: Kind, seed: int = 1, files: int = 6
) -> Case:
    form = FORMS[name]
    given = (
        random_files(seed, files, form.floats),
        random_files(seed + 1000, files, form.floats),
    )
    case = Case(form, kind, spec_of(form, kind), given, [], place)
    case.batches.extend(run_spark(spark, place, case.sides(), case.joined()))
    assert len(case.batches) >= files
    return case


def check_replay(case: Case) -> list[Stores]:
    """Compare every batch's output and state; return the states."""
    driver = Driver(case.spec, PARTITIONS)
    states = []
    for batch in case.batches:
        assert case.turn(driver, batch) == batch.output, batch
        stored = spark_state(case.place / "checkpoint", case.spec.stores, batch.number + 1)
        assert driver.stores == stored, batch
        states.append({place: dict(rows) for place, rows in stored.items()})
        driver.restart()
    assert any(batch.output for batch in case.batches)
    return states


@pytest.fixture
def idle_batches(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[None]:
    spark.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", str(request.param).lower())
    yield
    spark.conf.unset("spark.sql.streaming.noDataMicroBatches.enabled")


MATRIX = [
    *((kind, name) for kind in KINDS for name in ("key", "range", "windows", "range-one-side")),
    ("inner", "no-watermark"),
    ("inner", "one-watermark"),
    ("left_semi", "one-watermark"),
    ("inner", "numbers"),
    ("full_outer", "floats"),
]


@pytest.mark.parametrize(("kind", "name"), MATRIX)
def test_output_and_state_of_each_batch_are_sparks(
    spark: SparkSession, tmp_path: Path, kind: Kind, name: str
) -> None:
    check_replay(spark_case(spark, tmp_path, name, kind))


@pytest.mark.parametrize("idle_batches", [False], indirect=True)
@pytest.mark.parametrize(("kind", "name"), [("full_outer", "range"), ("left_outer", "windows")])
def test_output_and_state_are_sparks_without_idle_batches(
    spark: SparkSession, tmp_path: Path, kind: Kind, name: str, idle_batches: None
) -> None:
    case = spark_case(spark, tmp_path, name, kind, seed=2)
    assert len(case.batches) == 6
    check_replay(case)


@pytest.mark.parametrize(
    ("kind", "name", "seed"),
    [
        ("full_outer", "range", 5),
        ("left_semi", "range", 6),
        ("left_outer", "key", 7),
        ("right_outer", "windows", 8),
        ("inner", "range", 9),
    ],
)
def test_either_engine_goes_on_from_the_others_state(
    spark: SparkSession, tmp_path: Path, kind: Kind, name: str, seed: int
) -> None:
    case = spark_case(spark, tmp_path, name, kind, seed=seed)
    states = check_replay(case)
    stop = 2
    rest = [batch for batch in case.batches if batch.number > stop]

    ours = Driver(case.spec, PARTITIONS)
    ours.stores = spark_state(tmp_path / "checkpoint", case.spec.stores, stop + 1)
    ours.late_ms, ours.epoch = case.batches[stop].watermark_ms, stop + 1
    ours.restart()
    assert [case.turn(ours, batch) for batch in rest] == [batch.output for batch in rest]

    replace_state(rewound(tmp_path, stop, "resumed"), case.spec.stores, states[: stop + 1])
    sides, joined = case.sides(), case.joined()
    resumed = run_spark(spark, tmp_path, sides, joined, "resumed")
    assert [(each.number, each.output) for each in resumed] == [
        (each.number, each.output) for each in rest
    ]


@pytest.mark.parametrize("text", CONDITIONS)
def test_bounds_of_event_time_are_sparks(spark: SparkSession, text: str) -> None:
    left, right = (
        spark.readStream.format("rate")
        .load()
        .selectExpr(f"value AS {letter}k", f"value AS {letter}v", f"timestamp AS {letter}t")
        .withWatermark(f"{letter}t", DELAY)
        for letter in "lr"
    )
    frame = left.join(right, F.expr(f"lk = rk AND {text}"))
    plan = frame._jdf.queryExecution().analyzed()
    node: Any = read_plan(frame).tree
    while not isinstance(node, Stateful):
        node = node.child
    join: Any = node.spec
    for side in (0, 1):
        for watermark_ms in (3_000_000_007, 1_700_000_000_123):
            expected = spark_bound(spark, plan, side, watermark_ms)
            found = value_watermark_ms(join.condition, side, Sides(3, (2, 5)), watermark_ms)
            assert found == expected, (side, watermark_ms)


def spark_bound(spark: SparkSession, plan: Any, side: int, watermark_ms: int) -> int | None:
    """What Spark's own function says about the condition of a join."""
    catalyst: Any = spark._jvm.org.apache.spark.sql.catalyst
    some = spark._jvm.scala.Option
    attributes = getattr(catalyst.expressions, "AttributeSet$").__getattr__("MODULE$")
    children = (plan.left(), plan.right())
    mine, other = (attributes.apply(children[which].output()) for which in (side, 1 - side))
    found = catalyst.analysis.StreamingJoinHelper.getStateValueWatermark(
        mine, other, plan.condition(), some.apply(watermark_ms)
    )
    return int(found.get()) if found.isDefined() else None


STATIC: dict[tuple[StaticSide, StaticKind], str] = {
    ("left", "inner"): "SELECT * FROM s JOIN t ON k = id AND v < w",
    ("left", "left_outer"): "SELECT * FROM s LEFT JOIN t ON k = id AND v < w",
    ("right", "right_outer"): "SELECT * FROM t RIGHT JOIN s ON k = id AND v < w",
    ("left", "left_semi"): "SELECT * FROM s LEFT SEMI JOIN t ON k = id AND v < w",
    ("left", "left_anti"): "SELECT * FROM s LEFT ANTI JOIN t ON k = id AND v < w",
    ("left", "existence"): "SELECT *, EXISTS (SELECT 1 FROM t WHERE k = id AND v < w) FROM s",
}


@pytest.mark.parametrize(("side", "kind"), STATIC)
def test_a_join_with_a_table_gives_what_spark_gives(
    spark: SparkSession, side: StaticSide, kind: StaticKind
) -> None:
    rng = random.Random(3)
    keys = [None, 0.0, -0.0, math.nan, 1.5, 2.0]
    stream = columns(k=pa.float64(), v=pa.int64())
    items = columns(id=pa.float64(), w=pa.int64())
    rows = [(rng.choice(keys), rng.randrange(9)) for _ in range(60)]
    held = [(rng.choice(keys[:5]), rng.choice([None, *range(9)])) for _ in range(20)]
    given, table_ = table(stream, rows), pa.Table.from_batches([table(items, held)])
    spark.createDataFrame(pa.Table.from_batches([given])).createOrReplaceTempView("s")
    spark.createDataFrame(table_).createOrReplaceTempView("t")
    expected = sorted(repr(tuple(row)) for row in spark.sql(STATIC[side, kind]).collect())

    fields = {
        "left_semi": list(stream),
        "left_anti": list(stream),
        "existence": [*stream, pa.field("exists", pa.bool_())],
    }.get(kind, [*stream, *items] if side == "left" else [*items, *stream])
    condition = call(
        "LessThan", *((Column(1), Column(3)) if side == "left" else (Column(3), Column(1)))
    )
    spec = StaticJoinSpec(table_, side, kind, ("k",), ("id",), condition, pa.schema(fields))
    found = [
        repr(tuple(row.values()))
        for batch in spec.open().process(given, Moment(0, -1, 0, -1))
        for row in batch.to_pylist()
    ]
    assert sorted(found) == expected


def test_a_limit_stores_what_spark_stores(spark: SparkSession, tmp_path: Path) -> None:
    files = [[("a", second(1), 1)] * 2, [("b", second(2), 2)] * 4, [("c", second(3), 3)]]
    side = Side("k string, t timestamp, v long", files, lambda frame: frame)
    empty = Side(side.schema, [[], [], []], lambda frame: frame.where("false"))
    batches = run_spark(
        spark, tmp_path, (side, empty), lambda left, right: left.union(right).limit(5)
    )
    schema = columns(k=pa.string(), t=TIME, v=pa.int64())
    driver = Driver(GlobalLimitSpec(5, schema))
    for batch, rows in zip(batches, files, strict=True):
        assert turn(driver, batch, [(0, schema, rows)]) == batch.output
        (store,) = driver.spec.stores
        stored = store_of(tmp_path / "checkpoint", store, 0).get_store(batch.number + 1)
        assert driver.stores[0, "default"] == dict(stored.items_raw())
    assert not (tmp_path / "checkpoint/state/0/1").exists()
