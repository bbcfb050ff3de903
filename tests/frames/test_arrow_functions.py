"""What Arrow evaluates has the value that Spark's own code computes, row by row.

Both forms of an expression are evaluated over the same random rows, full of odd values. Arrow gets
them one at a time and a few at a time, so that it cannot leave a whole batch to Spark because of
one of them.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa
import pytest
from tests.frames.many_expressions import KEEP_PROJECTS, both_forms, comparable, frame_of
from tests.spark.sessions import INTERPRETED, session_with

from epochal.continuous.operators.expressions.casts import CASTS, cast_name
from epochal.continuous.operators.expressions.evaluate import CHOICES, FUNCTIONS, evaluate
from epochal.continuous.operators.expressions.expr import AskSpark, Call, Expr, as_column, type_of
from epochal.errors import ExpressionError

EXACT = Context(prec=60)
ASKED, FAILED = "asked Spark", "failed"

DDL = (
    "i int, j int, l bigint, m bigint, b tinyint, h smallint, f double, g double, r float, "
    "d9 decimal(12,2), e9 decimal(9,4), d38 decimal(38,10), s string, t string, w string, "
    "bin binary, bl boolean, c boolean, ts timestamp, tu timestamp, n timestamp_ntz, d date, "
    "e date, st struct<x:int,y:string>"
)

TEXTS = """
i + j | l - m | l * m | b + b | h * h | f + g | f * g | f / g | r - r | -l | -f | -b
-d38 | d38 + d38 | d38 * d9 | cast(d38 as decimal(38,12))
d9 + e9 | d9 - e9 | d9 * e9 | d9 + d9 | i div j | l div m | i % j | l % m | pmod(l, m) | pmod(i, j)
i & j | l | m | l ^ m | ~l
i = j | f = g | s = t | bin = bin | d < e | ts >= tu | n <= n | d9 > e9 | bl <=> c | f <=> g
s <=> t | f < g | f > g | l between m and 5 | f between g and 1 | i in (1, 2, null)
i in (1,2,3,4,5,6,7,8,9,10,11,12,13) | f in (1.0D, double('NaN')) | bl and c | bl or c | not bl
s in ('a','b','c','d','e','f','g','h','k','l','m', null) | isnan(f) | i is null | s is not null
greatest(f, g, 0) | least(i, j, 3) | greatest(s, t) | coalesce(i, j, 1) | nullif(i, j)
if(bl, i, j) | case when i > 0 then l / i when j = 0 then m else f end
cast(i as bigint) | cast(l as int) | cast(l as smallint) | cast(i as double) | cast(f as float)
cast(f as int) | cast(f as bigint) | cast(l as float) | cast(i as string) | cast(bl as string)
cast(bin as string) | cast(s as binary) | cast(w as int) | cast(w as bigint)
cast(i as decimal(12,2)) | cast(l as decimal(20,0)) | cast(d9 as decimal(20,4)) | cast(w as tinyint)
cast(d as timestamp)
cast(ts as date) | cast(n as timestamp) | cast(ts as timestamp_ntz) | cast(d as timestamp_ntz)
cast(ts as bigint) | cast(n as date)
year(d) | quarter(d) | month(d) | day(d) | dayofyear(d) | year(ts) | hour(ts) | minute(ts)
second(ts) | hour(n)
date_add(d, h) | date_sub(d, b) | datediff(d, e) | ts - tu | n - n | ts + interval 90 minutes
ts + interval 200 days | ts - interval '31 23' day to hour | n + interval 200 days
n - interval 3 seconds | ts + (tu - ts) | unix_date(d) | unix_micros(ts) | unix_millis(ts)
unix_seconds(ts) | timestamp_micros(l) | timestamp_millis(l) | timestamp_seconds(l)
timestamp_seconds(i) | s in ('a', 'b') | date_format(ts, 'yyyy-MM-dd HH:mm:ss')
date_format(n, "yyyy/MM/dd'T'HH") | date_format(ts, 'MMMM') | date_format(ts, "HH''mm'a''b'")
upper(s) | lower(s) | length(s) | length(bin) | trim(s) | substring(s, 2, 3) | substring(s, 0, 2)
substring(s, 3, 0) | startswith(s, 'a') | endswith(s, 'b') | contains(s, 'ab') | concat(s, t, 'x')
concat(s, cast(i as string)) | concat(bin, bin) | st.x | st.y | named_struct('a', i, 'b', s)
struct(l, st) | st is null | named_struct('a', st, 'i', i) is not null
"""

INTS = (0, 1, -1, 2, 3, -7, 100, 127, -128, 32767, 2**31 - 1, -(2**31))
LONGS = (*INTS, 2**62, -(2**62) - 1, 2**63 - 1, -(2**63), 1_700_000_000_000_000, 951_782_400)
DOUBLES = (0.0, -0.0, 1.5, -2.25, math.nan, math.inf, -math.inf, 5e-324, 1e308, 2.0**63, -129.5)
WORDS = ("", "a", "ab", "b", " ab ", "Straße", "ﬁ", "ǅ", "İ", "e\u0301", "😀a", "\tab", "aB\u00a0")
NUMBERS = ("0", "-0", "12", "-7", "+5", " 9", "1.5", "1e3", "NaN", "9" * 18, "9" * 25, "x", "", "٣")
BYTES = (b"", b"ab", b"\xff\xfe", b"\xc3", "ß".encode())


def test_arrow_has_the_values_of_sparks_own_code_without_ansi_mode() -> None:
    check(ansi=False, zone="America/New_York", seed=1, rows=30)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "Australia/Lord_Howe", "Asia/Kathmandu"])
@pytest.mark.parametrize("ansi", [True, False])
@pytest.mark.full
def test_arrow_has_the_values_of_sparks_own_code(ansi: bool, zone: str, seed: int) -> None:
    check(ansi=ansi, zone=zone, seed=seed, rows=400)


def test_arrow_fails_where_sparks_own_code_fails_in_ansi_mode() -> None:
    check(ansi=True, zone="UTC", seed=2, rows=25)


@pytest.mark.parametrize("pattern", ["yyyy-MM-dd", "dd.MM.yyyy HH", "HH:mm", "yyyyMMdd'T'HHmmss"])
def test_rows_that_share_a_text_have_that_of_sparks_own_code(pattern: str) -> None:
    zone = "America/New_York"
    session = session_with({**KEEP_PROJECTS, **INTERPRETED, "spark.sql.session.timeZone": zone})
    stamps = [1_709_970_000_000_000 + 7_919_000 * row for row in range(3_000)]
    once = [stamp if row % 7 else None for row, stamp in enumerate(stamps)]
    times = [stamp for stamp in once for _ in range(8)]
    batch = pa.record_batch({"ts": pa.array(times, pa.timestamp("us", "UTC"))})
    text = f'date_format(ts, "{pattern}")'
    ((arrow, in_spark),) = both_forms(
        session, frame_of(session, batch, "ts timestamp"), [text]
    ).values()
    assert arrow is not None
    assert values(arrow, batch) == values(in_spark, batch)


def test_arrow_looks_for_nulls_of_any_type() -> None:
    batch, asked = rows_of(0, 1), ["st is null", "named_struct('a', st) is not null"]
    forms = both_forms(session_with(KEEP_PROJECTS), frame_of(session_with({}), batch, DDL), asked)
    assert [text for text, (arrow, _) in forms.items() if arrow is None] == []


def test_every_function_of_arrow_is_compared() -> None:
    spark = session_with(KEEP_PROJECTS)
    forms = both_forms(spark, frame_of(spark, rows_of(0, 1), DDL), texts())
    types = rows_of(0, 1).schema.types
    trees = [arrow for arrow, _ in forms.values() if arrow is not None]
    used = {name for arrow in trees for name in names_in(arrow, types)}
    assert {*FUNCTIONS, *CHOICES, *CASTS} - used == INTERNAL


INTERNAL = {
    "Cast",  # each pair of types has a name of its own
    "AtLeastNNonNulls",
    "MakeDecimal",
    "NormalizeNaNAndZero",
    "PreciseTimestampConversion",
    "UnscaledValue",
}
"""What Spark's planner writes into plans, and no text can name: plans of whole queries have it."""


def check(*, ansi: bool, zone: str, seed: int, rows: int) -> None:
    session = session_with(
        {
            **KEEP_PROJECTS,
            **INTERPRETED,
            "spark.sql.ansi.enabled": str(ansi).lower(),
            "spark.sql.session.timeZone": zone,
        }
    )
    batch = rows_of(seed, rows)
    differing = {}
    for text, (arrow, in_spark) in both_forms(
        session, frame_of(session, batch, DDL), texts()
    ).items():
        if arrow is not None:
            for size in (1, 5):
                if found := differences(arrow, in_spark, batch, size):
                    differing[text] = found[:3]
    assert differing == {}


def differences(arrow: Expr, in_spark: Expr, batch: pa.RecordBatch, size: int) -> list[Any]:
    """Rows for which Arrow has another value, or a value where Spark fails."""
    wanted = values(in_spark, batch)
    found = []
    for start in range(0, batch.num_rows, size):
        part = batch.slice(start, size)
        ours = values(arrow, part)
        theirs = wanted[start : start + size] if wanted is not FAILED else values(in_spark, part)
        if ours not in (ASKED, theirs):
            found.append((start, part.to_pylist()[:1], ours, theirs))
    return found


def values(expr: Expr, batch: pa.RecordBatch) -> Any:
    try:
        return comparable(as_column(evaluate(expr, batch), batch.num_rows))
    except (AskSpark, pa.ArrowException):
        return ASKED
    except ExpressionError:
        return FAILED


def names_in(expr: Expr, types: Sequence[pa.DataType]) -> set[str]:
    """The functions of an expression over columns of these types; casts by their pairs of types."""
    match expr:
        case Call(function, arguments, kind):
            name = function
            if name == "Cast":
                name = cast_name(type_of(arguments[0], types), kind) or name
            return {name}.union(*(names_in(argument, types) for argument in arguments))
    return set()


def texts() -> list[str]:
    lines = TEXTS.replace("l | m", "l §§ m").replace("\n", " | ").split(" | ")
    known = [text.strip().replace("§§", "|") for text in lines]
    return [text for text in known if text]


def rows_of(seed: int, count: int) -> pa.RecordBatch:
    draw = random.Random(seed)

    def column(kind: Any, make: Callable[[], Any]) -> Any:
        return pa.array([None if draw.random() < 0.1 else make() for _ in range(count)], kind)

    def integer(bits: int) -> Callable[[], int]:
        fitting = [number for number in LONGS if -(2 ** (bits - 1)) <= number < 2 ** (bits - 1)]
        return lambda: draw.choice(fitting) if draw.random() < 0.6 else draw.randint(-50, 50)

    def micros() -> int:
        if draw.random() < 0.3:
            return draw.choice((0, -1, 1, -62_135_596_800_000_000, 253_402_300_799_999_999))
        around = draw.choice((1_711_846_800, 1_729_990_800, 1_699_164_000, 0, 951_782_400))
        return (around + draw.randint(-9_000, 9_000)) * 1_000_000 + draw.choice((0, 1, 500_000))

    def decimal(digits: int, scale: int) -> Callable[[], Decimal]:
        limit = 10**digits - 1
        return lambda: Decimal(draw.choice((0, 1, limit, -limit, draw.randint(-999, 999)))).scaleb(
            -scale, EXACT
        )

    double = column_of_doubles(draw)
    times: dict[str, Any] = {
        "ts": pa.timestamp("us", "UTC"),
        "tu": pa.timestamp("us", "UTC"),
        "n": pa.timestamp("us"),
    }
    columns: dict[str, Any] = {
        "i": column(pa.int32(), integer(32)),
        "j": column(pa.int32(), integer(32)),
        "l": column(pa.int64(), integer(64)),
        "m": column(pa.int64(), integer(64)),
        "b": column(pa.int8(), integer(8)),
        "h": column(pa.int16(), integer(16)),
        "f": column(pa.float64(), double),
        "g": column(pa.float64(), double),
        "r": column(pa.float32(), lambda: draw.choice((0.5, -0.0, math.nan, 3.25))),
        "d9": column(pa.decimal128(12, 2), decimal(12, 2)),
        "e9": column(pa.decimal128(9, 4), decimal(9, 4)),
        "d38": column(pa.decimal128(38, 10), decimal(38, 10)),
        "s": column(pa.string(), lambda: draw.choice(WORDS)),
        "t": column(pa.string(), lambda: draw.choice(WORDS)),
        "w": column(pa.string(), lambda: draw.choice(NUMBERS)),
        "bin": column(pa.binary(), lambda: draw.choice(BYTES)),
        "bl": column(pa.bool_(), lambda: draw.random() < 0.5),
        "c": column(pa.bool_(), lambda: draw.random() < 0.5),
        **{name: column(pa.int64(), micros).cast(kind) for name, kind in times.items()},
        "d": column(pa.int32(), lambda: draw.choice((0, -719_162, 2_932_896, 19_000))).cast(
            pa.date32()
        ),
        "e": column(pa.int32(), lambda: draw.randint(-30_000, 30_000)).cast(pa.date32()),
        "st": column(
            pa.struct([("x", pa.int32()), ("y", pa.string())]),
            lambda: {"x": draw.choice((1, None)), "y": draw.choice((*WORDS, None))},
        ),
    }
    return pa.RecordBatch.from_pydict(columns)


def column_of_doubles(draw: random.Random) -> Callable[[], float]:
    return lambda: draw.choice(DOUBLES) if draw.random() < 0.7 else draw.uniform(-1e6, 1e6)
