"""Numbers, hashes, formatted and parsed times are what Spark computes, value by value."""

from __future__ import annotations

import datetime
import math
import random
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from tests.frames.many_expressions import (
    KEEP_PROJECTS,
    differences,
    expressions,
    frame_of,
    modes_and_zones,
    values_of_spark,
)
from tests.frames.test_functions_time_nested import rows_of, texts_of
from tests.spark.sessions import INTERPRETED, session_with

from epochal.continuous.operators.expressions.evaluate import evaluate

NAN, INF = math.nan, math.inf

NUMBER_DDL = (
    "f double, g double, r float, i int, l bigint, p int, q int, b tinyint, h smallint, "
    "bl boolean, s string, bin binary, d9 decimal(12,2), d30 decimal(30,5), ts timestamp, d date, "
    "sa array<string>, m map<int,string>, st struct<x:int,y:array<double>>"
)
PATTERN_DDL = "ts timestamp, n timestamp_ntz, d date, l bigint, s string, p string"

EXACT = """
sqrt(f)
degrees(f)
radians(f)
factorial(i)
bin(l)
conv(substr(s, 1, 15), 16, -10)
conv(substr(s, 1, 15), 36, q)
rint(f)
width_bucket(f, 0, 10, 5)
width_bucket(f, 10, 0, i)
width_bucket(f, g, 10, 5)
bit_count(i)
bit_count(l)
bit_count(b)
bit_count(bl)
getbit(l, p)
getbit(i, p)
shiftleft(i, p)
shiftleft(l, i)
shiftright(i, q)
shiftright(l, i)
shiftrightunsigned(i, q)
shiftrightunsigned(l, i)
i & p
l | i
i ^ q
~i
~l
hash(f)
hash(i, s, l)
hash(bl, b, h, r)
hash(sa)
hash(m)
hash(st)
hash(d9, d30)
hash(ts, d, bin)
xxhash64(f)
xxhash64(i, s, l)
xxhash64(bl, b, h, r)
xxhash64(sa)
xxhash64(m)
xxhash64(st)
xxhash64(d9, d30)
xxhash64(ts, d, bin)
md5(bin)
md5(s)
sha1(bin)
sha2(bin, 256)
sha2(bin, 0)
sha2(bin, 512)
sha2(bin, p * 32)
crc32(bin)
crc32(s)
"""

NEAR = """
cbrt(f)
exp(f)
expm1(f)
ln(f)
log(f)
log(g, f)
log2(f)
log10(f)
log1p(f)
power(f, g)
sin(f)
cos(f)
tan(f)
cot(f)
sec(f)
csc(f)
asin(f)
acos(f)
atan(f)
atan2(f, g)
sinh(f)
cosh(f)
tanh(f)
asinh(f)
acosh(f)
atanh(f)
hypot(f, g)
"""
"""Java's own mathematical functions differ from the C library's in the last bit."""

PATTERNS = r"""
date_format(ts, 'yyyy-MM-dd')
date_format(ts, 'yyyy-MM-dd HH:mm:ss')
date_format(ts, 'yyyy-MM-dd\'T\'HH:mm:ss.SSSXXX')
date_format(ts, 'y yy yyy yyyyy yyyyyy')
date_format(ts, 'G yyyy')
date_format(ts, 'GGGG y')
date_format(ts, 'M MM MMM MMMM')
date_format(ts, 'L LLL LLLL')
date_format(ts, 'd dd D DD DDD')
date_format(ts, 'E EEE EEEE a')
date_format(ts, 'h hh H HH k kk K KK')
date_format(ts, 'm mm s ss S SS SSS SSSSSS SSSSSSSSS')
date_format(ts, 'q qq qqq qqqq Q QQ QQQ QQQQ')
date_format(ts, 'VV')
date_format(ts, 'X XX XXX XXXX XXXXX')
date_format(ts, 'x xx xxx xxxx xxxxx')
date_format(ts, 'Z ZZ ZZZ ZZZZ ZZZZZ')
date_format(ts, 'O OOOO')
date_format(ts, 'yyyy[MM]')
date_format(ts, '\'it\'\'s\' yyyy')
date_format(ts, 'yyyyMMddHHmmss')
date_format(ts, p)
from_unixtime(l)
from_unixtime(l, p)
unix_timestamp(ts)
unix_timestamp(n)
unix_timestamp(d)
try_to_timestamp(s, 'yyyy-MM-dd')
try_to_timestamp(s, 'yyyy-MM-dd HH:mm:ss')
try_to_timestamp(s, 'dd/MM/yyyy')
try_to_timestamp(s, 'yyyyMMdd')
try_to_timestamp(s, 'yyyy-MM-dd\'T\'HH:mm:ss.SSSSSS')
try_to_timestamp(s, 'yyyy-MM-dd\'T\'HH:mm:ss.SSSX')
try_to_timestamp(s, 'yyyy-MM-dd\'T\'HH:mm:ss[.SSS]XXX')
try_to_timestamp(s, 'yyyy-MM-dd\'T\'HH:mm:ssZ')
try_to_timestamp(s, 'dd MMM yyyy')
try_to_timestamp(s, 'MMMM dd, yyyy')
try_to_timestamp(s, 'hh:mm a')
try_to_timestamp(s, 'HH:mm')
try_to_timestamp(s, 'y-M-d')
try_to_timestamp(s, 'yy-M-d')
try_to_timestamp(s, 'yyyy-DDD')
try_to_timestamp(s, 'yyyy-D')
try_to_timestamp(s, 'H:m')
try_to_timestamp(s, 'KK:mm a')
try_to_timestamp(s, 'a')
try_to_timestamp(s, 'yyyy')
try_to_timestamp(s, 'M')
try_to_timestamp(s, 'yyyy-MM-dd[ HH:mm[:ss[.SSS]]]')
try_to_timestamp(s, 'd/M/y')
try_to_timestamp(s, 'yyyy-MM')
try_to_timestamp(s, 'dd')
try_to_timestamp(s, 'ss')
try_to_timestamp(s, 'yyyy-MM-dd kk:mm:ss')
try_to_timestamp(s, 'G yyyy')
try_to_timestamp(s, 'VV')
try_to_timestamp(s, p)
"""

STAMPS = """
%Y-%m-%d; %Y-%m-%d %H:%M:%S; %d/%m/%Y; %Y%m%d; %Y-%m-%dT%H:%M:%S.%f; %d %b %Y; %B %d, %Y; %I:%M %p
"""
ODD_TEXTS = """
2024-02-30; 2024-2-3; x; 2024-13-01; 99; +12345-01-01; -0005-01-01; 2024-01-01T10:00:00+02:00;
2024-01-01T10:00:00-0530; 2024-01-01T10:00:00.5Z; 24-1-5; 12:30; 2024-060; 2024-366; 2023-366;
05 jan 2024; 00:15 AM; 13:00 PM; 2024-01-01 24:00:00; 2024-01-01 10:00; 2024-03-10 02:30:00;
2024-11-03 01:30:00; 2024-01-01 10:00:00.1; Europe/Berlin; BC 0004; 7
"""


def number_rows(seed: int, count: int) -> pa.RecordBatch:
    """Numbers of all sizes, with NaN, infinities and both zeros; and something of every type."""
    rng = random.Random(seed)

    def maybe(make: Callable[[], Any]) -> Callable[[], Any]:
        return lambda: None if rng.random() < 0.08 else make()

    def one_of(*values: Any) -> Callable[[], Any]:
        return maybe(lambda: rng.choice(values))

    def double() -> float:
        special = [0.0, -0.0, 1.0, -1.0, NAN, INF, -INF, 0.5, 1e300, 1e-300, -1e300, 2.5, -2.5]
        spread = [rng.uniform(-2, 2), rng.uniform(-1000, 1000), math.exp(rng.uniform(-700, 700))]
        return rng.choice([*special, *spread, *spread, *spread])

    def whole() -> int:
        return rng.choice([0, 1, -1, 5, 20, 21, 31, 32, 63, 64, -(2**31), 2**31 - 1])

    def long() -> int:
        return rng.choice([whole(), 2**63 - 1, -(2**63), rng.randrange(-(2**62), 2**62)])

    def pairs() -> Any:
        return list({rng.randrange(9): "v" for _ in range(rng.randrange(4))}.items())

    texts = ("", "a", "10", "-15", "ff", "7FFFFFFFFFFFFFFF", "zz", "1x", "ü", "a longer text" * 3)
    struct = pa.struct([("x", pa.int32()), ("y", pa.list_(pa.float64()))])
    some_texts = maybe(lambda: [rng.choice([None, "", "a"]) for _ in range(rng.randrange(5))])
    big = maybe(lambda: Decimal(rng.randrange(-(10**25), 10**25)).scaleb(-5))
    return rows_of(
        {
            "f": (pa.float64(), maybe(double)),
            "g": (pa.float64(), maybe(double)),
            "r": (pa.float32(), one_of(0.0, -0.0, 1.5, NAN, -7.25)),
            "i": (pa.int32(), maybe(whole)),
            "l": (pa.int64(), maybe(long)),
            "p": (pa.int32(), maybe(lambda: rng.randrange(32))),
            "q": (pa.int32(), one_of(1, 2, 10, 0, 36)),
            "b": (pa.int8(), one_of(-128, 127, 0, 5)),
            "h": (pa.int16(), one_of(-32768, 127, 0, 5)),
            "bl": (pa.bool_(), one_of(True, False)),
            "s": (pa.string(), one_of(*texts)),
            "bin": (pa.binary(), maybe(lambda: rng.randbytes(rng.randrange(70)))),
            "d9": (pa.decimal128(12, 2), maybe(lambda: Decimal(rng.randrange(10**9)).scaleb(-2))),
            "d30": (pa.decimal128(30, 5), big),
            "ts": (pa.timestamp("us", "UTC"), maybe(lambda: rng.randrange(-(10**15), 10**16))),
            "d": (pa.date32(), maybe(lambda: rng.randrange(-(10**5), 10**5))),
            "sa": (pa.list_(pa.string()), some_texts),
            "m": (pa.map_(pa.int32(), pa.string()), maybe(pairs)),
            "st": (struct, maybe(lambda: {"x": whole(), "y": [1.5, None, NAN]})),
        },
        count,
    )


def pattern_rows(seed: int, count: int) -> pa.RecordBatch:
    """Times, also beyond the year 9999, and texts that are times of many patterns, or of none."""
    rng = random.Random(seed)
    stamps = [each.strip() for each in STAMPS.split(";")]
    odd = ["", *(each.strip() for each in ODD_TEXTS.split(";"))]

    def maybe(make: Callable[[], Any]) -> Callable[[], Any]:
        return lambda: None if rng.random() < 0.08 else make()

    def seconds() -> int:
        if rng.random() < 0.7:
            return rng.randrange(-2_208_988_800, 4_102_444_800)
        return rng.randrange(-72_135_596_800, 353_402_300_799)

    def text() -> str:
        if rng.random() < 0.4:
            return rng.choice(odd)
        date = datetime.date(1000, 1, 1) + datetime.timedelta(rng.randrange(3 * 10**6))
        time = datetime.time(rng.randrange(24), rng.randrange(60), rng.randrange(60), 12_345)
        return datetime.datetime.combine(date, time).strftime(rng.choice(stamps))

    micros = maybe(lambda: seconds() * 10**6 + rng.choice([0, 1, 123_000, 999_999]))
    patterns = ("yyyy-MM-dd", "dd/MM/yyyy HH:mm", "yyyyMMdd")
    return rows_of(
        {
            "ts": (pa.timestamp("us", "UTC"), micros),
            "n": (pa.timestamp("us"), micros),
            "d": (pa.date32(), maybe(lambda: seconds() // 86_400)),
            "l": (pa.int64(), maybe(seconds)),
            "s": (pa.string(), maybe(text)),
            "p": (pa.string(), maybe(lambda: rng.choice(patterns))),
        },
        count,
    )


KINDS: dict[str, tuple[Callable[[int, int], pa.RecordBatch], str, str]] = {
    "numbers": (number_rows, NUMBER_DDL, EXACT),
    "patterns": (pattern_rows, PATTERN_DDL, PATTERNS),
}


@pytest.fixture(scope="module")
def spark() -> SparkSession:
    hashes = {"spark.sql.legacy.allowHashOnMapType": "true"}
    return session_with({**KEEP_PROJECTS, **INTERPRETED, **hashes})


def check(spark: SparkSession, what: str, *, ansi: bool, zone: str, seed: int, count: int) -> None:
    spark.conf.set("spark.sql.ansi.enabled", str(ansi).lower())
    spark.conf.set("spark.sql.session.timeZone", zone)
    make, ddl, block = KINDS[what]
    rows = make(seed, count)
    assert differences(spark, frame_of(spark, rows, ddl), rows, texts_of(block)) == {}


@pytest.mark.parametrize("what", list(KINDS))
def test_a_value_is_what_spark_computes_without_ansi_mode(spark: SparkSession, what: str) -> None:
    check(spark, what, ansi=False, zone="America/New_York", seed=1, count=80)


@pytest.mark.parametrize(
    ("ansi", "zone"), modes_and_zones("Australia/Sydney", "Asia/Kolkata", "UTC")
)
@pytest.mark.parametrize("what", list(KINDS))
def test_a_value_is_what_spark_computes_in_every_mode_and_zone(
    spark: SparkSession, what: str, ansi: bool, zone: str
) -> None:
    check(spark, what, ansi=ansi, zone=zone, seed=2, count=400)


def test_mathematical_functions_are_within_two_units_in_the_last_place(spark: SparkSession) -> None:
    rows = number_rows(4, 300)
    frame = frame_of(spark, rows, NUMBER_DDL)
    names = texts_of(NEAR)
    for text, theirs, tree in zip(
        names, values_of_spark(frame, names), expressions(spark, frame, names), strict=True
    ):
        for expected, found in zip(
            theirs.to_pylist(), evaluate(tree, rows).to_pylist(), strict=True
        ):
            assert _is_near(expected, found), (text, expected, found)


def _is_near(expected: float | None, found: float | None) -> bool:
    if expected is None or found is None or math.isnan(expected) or math.isnan(found):
        return str(expected) == str(found)
    if math.isinf(expected) or math.isinf(found):
        return expected == found
    return abs(expected - found) <= 2 * math.ulp(max(abs(expected), abs(found)))


@pytest.mark.parametrize(
    "text",
    [
        "to_timestamp(s, 'yyyy-MM-dd')",
        "conv(repeat('F', 17), 16, abs(p))",
        "getbit(b, p)",
        "assert_true(bl)",
        "if(bl, 1, raise_error('bad'))",
    ],
)
def test_a_value_without_a_result_is_an_error_as_in_spark(spark: SparkSession, text: str) -> None:
    spark.conf.set("spark.sql.ansi.enabled", "true")
    rows = number_rows(5, 60)
    frame = frame_of(spark, rows, NUMBER_DDL)
    with pytest.raises(Exception, match=r"\["):
        frame.selectExpr(text).toArrow()
    assert differences(spark, frame, rows, [text]) == {}


@pytest.mark.parametrize("pattern", ["z", "EEEEE", "Y", "w", "F", "B"])
def test_a_pattern_that_is_not_supported_is_refused_before_the_query_starts(
    spark: SparkSession, pattern: str
) -> None:
    frame = frame_of(spark, pattern_rows(6, 3), PATTERN_DDL)
    (tree,) = expressions(spark, frame, [f"date_format(ts, '{pattern}')"])
    (found,) = unsupported(tree)
    assert found.startswith("DateFormatClass (INVALID_DATETIME_PATTERN")
    assert pattern[0] in found


def test_random_functions_have_another_value_in_every_row(spark: SparkSession) -> None:
    rows = pattern_rows(7, 50)
    frame = frame_of(spark, rows, PATTERN_DDL)
    uuids, numbers = (
        evaluate(tree, rows).to_pylist() for tree in expressions(spark, frame, ["uuid()", "rand()"])
    )
    assert len(set(uuids)) == len(set(numbers)) == 50
    assert all(len(each) == 36 and each[14] == "4" for each in uuids)
    assert all(0 <= each < 1 for each in numbers)
