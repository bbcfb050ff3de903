"""Functions of times, arrays, maps and lambdas give what Spark's own give, value by value."""

from __future__ import annotations

import datetime
import random
from collections.abc import Callable
from decimal import Decimal
from typing import Any, TypeAlias

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from tests.frames.many_expressions import (
    KEEP_PROJECTS,
    differences,
    frame_of,
    modes_and_zones,
)
from tests.spark.sessions import INTERPRETED, session_with

NAN, INF = float("nan"), float("inf")

NESTED_DDL = (
    "i int, small int, s string, f double, a array<int>, b array<int>, sa array<string>, "
    "fa array<double>, fb array<double>, aa array<array<int>>, m map<string,int>, "
    "m2 map<string,int>, st struct<x:int,y:string>, ast array<struct<x:int,y:string>>"
)
TIME_DDL = (
    "ts timestamp, t2 timestamp, n timestamp_ntz, d date, d2 date, i int, j int, y int, l bigint, "
    "f double, dec decimal(10,6), u string, z string, dt interval day to second"
)
UNITS = """
year YYYY mon month mm quarter week day dd hour minute second millisecond microsecond bad MO tuesday
"""
ZONES = "UTC Europe/Berlin America/New_York Asia/Kolkata Australia/Lord_Howe +05:30 Asia/Tokyo"

NESTED = """
st.x
ast.x
a[0]
get(a, i)
a[i]
m[s]
m['a']
element_at(a, small)
try_element_at(a, small)
element_at(m, s)
try_element_at(m, s)
named_struct('p', i, 'q', st)
array(i, small)
array(st, st)
map(1, s, 2, 'b')
map(coalesce(i, 0), s, -7, 'b')
map(coalesce(f, 0D), s)
map_from_arrays(array(1, 2), array(s, s))
map_from_entries(transform(ast, (x, k) -> struct(k, x.y)))
map_from_entries(if(i > 1, array(struct(1, s), null), array(struct(1, s))))
map_entries(m)
map_keys(m)
map_values(m)
map_concat(m, map('zz', 1))
map_contains_key(m, s)
map_contains_key(m, 'a')
size(a)
size(m)
cardinality(m)
array_size(sa)
array_contains(a, i)
array_contains(fa, f)
array_contains(sa, 'a')
array_contains(ast, st)
array_position(a, i)
array_position(fa, f)
array_remove(a, i)
array_remove(sa, s)
array_remove(fa, f)
array_distinct(a)
array_distinct(fa)
array_distinct(ast)
array_distinct(aa)
array_union(a, b)
array_union(fa, fb)
array_intersect(a, b)
array_intersect(fa, fb)
array_except(a, b)
array_except(fa, fb)
arrays_overlap(a, b)
arrays_overlap(fa, fb)
arrays_overlap(aa, array(a, b))
arrays_zip(a, sa)
arrays_zip(a, sa, fa)
array_join(sa, ',')
array_join(sa, s, 'x')
array_join(sa, ',', s)
array_min(a)
array_max(a)
array_min(fa)
array_max(fa)
array_max(sa)
array_min(ast)
array_max(aa)
sort_array(a)
sort_array(a, false)
sort_array(fa)
sort_array(fa, false)
sort_array(sa, false)
sort_array(ast)
sort_array(aa)
array_append(a, i)
array_prepend(a, i)
array_insert(a, small, 5)
array_insert(a, small * 4, i)
array_insert(sa, -3, s)
array_compact(a)
concat(a, b)
concat(sa, array(s))
concat(s, s)
flatten(aa)
flatten(array(a, b))
slice(a, small, 2)
slice(a, 2, coalesce(abs(small), 0))
array_repeat(s, small)
array_repeat(a, 2)
reverse(a)
reverse(s)
reverse(ast)
transform(a, x -> x % 5 + small)
transform(a, x -> x + i)
transform(a, (x, k) -> concat(cast(k as string), s))
transform(aa, x -> transform(x, y -> y % 7 + small + size(x)))
transform(ast, x -> x.x)
transform(a, x -> 1)
transform(a, x -> small)
filter(a, x -> x > i)
filter(a, (x, k) -> k > 1)
filter(aa, x -> exists(x, y -> y > small))
exists(a, x -> x > i)
forall(a, x -> x > i)
aggregate(a, 0, (acc, x) -> acc % 7 + coalesce(x % 7, 0))
aggregate(a, 0, (acc, x) -> acc + x)
aggregate(sa, '', (acc, x) -> concat(acc, coalesce(x, '-'), coalesce(s, '')), acc -> upper(acc))
aggregate(a, cast(null as int), (acc, x) -> coalesce(acc, x))
aggregate(transform(a, x -> x % 5), small, (acc, x) -> acc + x)
zip_with(a, b, (x, y) -> coalesce(x, y))
zip_with(a, sa, (x, y) -> struct(x, y, s))
array_sort(a)
array_sort(fa)
array_sort(ast)
array_sort(filter(a, x -> x is not null), (x, y) -> case when x < y then 1 when x > y then -1 else 0 end)
map_filter(m, (k, v) -> v > 1)
transform_keys(m, (k, v) -> concat(k, coalesce(s, '')))
transform_values(m, (k, v) -> v % 5 + small)
map_zip_with(m, m2, (k, v1, v2) -> coalesce(v1, 0) % 5 + coalesce(v2 % 5, 7))
map_zip_with(m, m2, (k, v1, v2) -> concat(k, s))
case when i > 1 then a when i < 0 then b end
if(i is null, null, st)
case when s = 'a' then map('a', 1) else m end
array_sort(filter(a, x -> x is not null), (x, y) -> (x % 5) * coalesce(small, 1) - (y % 5) * coalesce(small, 1))
"""  # noqa: E501

TIMES = """
sequence(i, j)
sequence(i, i + 20, 3)
sequence(i, i - 7, -2)
sequence(d, date_add(d, i))
sequence(d, date_add(d, 100), interval 1 month)
sequence(date_add(d, 100), d, interval -1 month)
sequence(d, date_add(d, 10), interval 3 days)
sequence(d, date_add(d, 100), interval 2 weeks)
sequence(ts, ts + interval 20 hours, interval 1 hour)
sequence(ts, ts + interval 5 days, interval 1 day)
sequence(ts, ts + interval 400 days, interval 1 month)
sequence(n, n + interval 400 days, interval 1 month)
sequence(n, n + interval 5 days, interval 36 hours)
sequence(ts, ts + interval 5 days, make_interval(0, 0, 0, 1, 1))
year(d)
quarter(d)
month(d)
weekofyear(d)
dayofweek(d)
weekday(d)
dayofyear(d)
day(d)
dayname(d)
monthname(d)
extract(yearofweek from d)
year(ts)
hour(ts)
hour(n)
minute(ts)
minute(n)
second(ts)
extract(second from ts)
extract(second from n)
extract(seconds from dt)
extract(days from dt)
extract(hour from dt)
extract(minute from dt)
date_add(d, i)
date_sub(d, i)
d + 1
datediff(d, d2)
add_months(d, i)
months_between(ts, t2)
months_between(ts, t2, false)
last_day(d)
next_day(d, 'MO')
next_day(d, u)
trunc(d, 'MM')
trunc(d, u)
date_trunc('week', ts)
date_trunc('hour', ts)
date_trunc('day', ts)
date_trunc(u, ts)
make_date(y, 2, 29)
make_date(y, abs(i) % 12 + 1, abs(j) % 28 + 1)
make_date(y, i, j)
try_make_timestamp(y, i, j, i, j, dec)
make_timestamp(y, abs(i) % 12 + 1, abs(j) % 28 + 1, abs(i) % 24, abs(j) % 60, abs(dec) % 60)
try_make_timestamp(y, abs(i) % 12 + 1, abs(j) % 28 + 1, abs(i) % 24, abs(j) % 60, dec, z)
try_make_timestamp_ntz(y, abs(i) % 12 + 1, abs(j) % 28 + 1, abs(i) % 24, abs(j) % 60, dec)
make_timestamp(y, i, j, i, j, dec)
make_dt_interval(i, j, i, dec)
timestampadd(HOUR, i, ts)
timestampadd(DAY, i, ts)
timestampadd(WEEK, i, n)
timestampadd(MONTH, i, ts)
timestampadd(QUARTER, i, n)
timestampadd(YEAR, i, ts)
timestampadd(SECOND, i, ts)
timestampadd(MICROSECOND, i, ts)
timestampdiff(HOUR, ts, t2)
timestampdiff(DAY, ts, t2)
timestampdiff(WEEK, ts, t2)
timestampdiff(MONTH, ts, t2)
timestampdiff(QUARTER, ts, t2)
timestampdiff(YEAR, ts, t2)
timestampdiff(MILLISECOND, ts, t2)
timestampdiff(MONTH, n, n + dt)
ts + interval 5 minutes
ts + interval 1 day
ts + interval '2 03:00:00' day to second
ts - interval 36 hours
ts + interval 1 month
ts - interval 13 months
n + interval 1 month
ts + make_interval(i % 3, i, 0, j, 1, 2, dec)
ts - make_interval(i % 3, i, 0, j, 1, 2, dec)
n + make_interval(0, i, 1, j)
d + make_interval(0, i, 1, j)
d - make_interval(0, i, 1, j)
d + make_interval(0, i, 1, j, 30)
d + interval 1 month
ts - t2
n - n
d - d2
dt + dt
dt - dt
dt * i
dt * f
dt / 3
dt / i
dt / 7.5
dt / nullif(f, 0D)
-dt
abs(dt)
ts + dt
ts - dt
n + dt
from_utc_timestamp(ts, 'Europe/Berlin')
from_utc_timestamp(ts, z)
to_utc_timestamp(ts, z)
convert_timezone('Europe/Berlin', 'America/Sao_Paulo', n)
convert_timezone(z, 'UTC', n)
unix_date(d)
date_from_unix_date(i)
unix_micros(ts)
unix_millis(ts)
unix_seconds(ts)
timestamp_seconds(f)
timestamp_seconds(dec)
timestamp_seconds(l)
timestamp_millis(l)
timestamp_micros(l)
try_add(d, i)
try_add(ts, interval 1 month)
try_subtract(ts, dt)
"""

WINDOWS = """
window(coalesce(ts, timestamp'1969-12-31 23:59:59'), '1 minute')
window(coalesce(n, timestamp_ntz'2024-01-01 00:00:00'), '7 seconds', '7 seconds', '3 seconds')
session_window(coalesce(ts, timestamp'2024-01-01 00:00:00'), '5 minutes')
window_time(window(coalesce(ts, timestamp'2024-01-01 00:00:00'), '1 minute'))
"""

FAILING = """
a[i]
element_at(a, i)
transform(a, x -> x + i)
array_sort(a, (x, y) -> case when x < y then 1 when x > y then -1 end)
map(i, s)
map_from_arrays(sa, a)
map_from_arrays(array(1, 2), sa)
map_from_entries(ast)
map_concat(m, m2)
slice(a, i, 1)
slice(a, 1, i)
transform_keys(m, (k, v) -> 1)
transform_keys(m, (k, v) -> concat(k, s))
try_element_at(a, i)
"""
"""What Spark refuses in ANSI mode."""


Columns: TypeAlias = dict[str, tuple[pa.DataType, Callable[[], Any]]]


def rows_of(columns: Columns, count: int) -> pa.RecordBatch:
    made = {
        name: pa.array([each() for _ in range(count)], _storage(kind)).cast(kind)
        for name, (kind, each) in columns.items()
    }
    return pa.RecordBatch.from_pydict(made)


def _storage(kind: pa.DataType) -> pa.DataType:
    if not pa.types.is_temporal(kind):
        return kind
    return pa.int32() if kind.bit_width == 32 else pa.int64()


def nested_rows(seed: int, count: int) -> pa.RecordBatch:
    """Arrays, maps and structs with nulls in every place, NaN, -0.0 and empty ones."""
    rng = random.Random(seed)

    def maybe(make: Callable[[], Any]) -> Callable[[], Any]:
        return lambda: None if rng.random() < 0.12 else make()

    def one_of(*values: Any) -> Callable[[], Any]:
        return lambda: rng.choice(values)

    def many(make: Callable[[], Any], most: int = 4) -> Callable[[], Any]:
        return lambda: [make() for _ in range(rng.randint(0, most))]

    def pairs() -> Any:
        return list({text(): number() for _ in range(rng.randint(0, 3))}.items())

    whole = one_of(0, 1, 2, 3, -1, -2, 5, 2**31 - 1)
    text, number = one_of("", "a", "b", "ü", "ab", "Z"), maybe(whole)
    double = maybe(one_of(0.0, -0.0, 1.5, NAN, INF, -2.0))
    struct = pa.struct([("x", pa.int32()), ("y", pa.string())])
    make_struct = maybe(lambda: {"x": number(), "y": maybe(text)()})
    ints, doubles = pa.list_(pa.int32()), pa.list_(pa.float64())
    texts = pa.map_(pa.string(), pa.int32())
    return rows_of(
        {
            "i": (pa.int32(), number),
            "small": (pa.int32(), maybe(one_of(1, 2, 3, -1, -2))),
            "s": (pa.string(), maybe(text)),
            "f": (pa.float64(), double),
            "a": (ints, maybe(many(number))),
            "b": (ints, maybe(many(number))),
            "sa": (pa.list_(pa.string()), maybe(many(maybe(text)))),
            "fa": (doubles, maybe(many(double))),
            "fb": (doubles, maybe(many(double))),
            "aa": (pa.list_(ints), maybe(many(maybe(many(number, 2))))),
            "m": (texts, maybe(pairs)),
            "m2": (texts, maybe(pairs)),
            "st": (struct, make_struct),
            "ast": (pa.list_(struct), maybe(many(make_struct))),
        },
        count,
    )


def time_rows(seed: int, count: int) -> pa.RecordBatch:
    """Times from the year 1 to 9999, many of them near changes of clocks."""
    rng = random.Random(seed)

    def maybe(make: Callable[[], Any]) -> Callable[[], Any]:
        return lambda: None if rng.random() < 0.08 else make()

    def one_of(*values: Any) -> Callable[[], Any]:
        return maybe(lambda: rng.choice(values))

    def seconds() -> int:
        kind = rng.random()
        if kind < 0.5:
            return rng.randrange(-2_208_988_800, 4_102_444_800)
        if kind < 0.8:
            return rng.randrange(-62_125_596_800, 253_392_300_799)
        year, month = rng.choice([1950, 1995, 2024, 2045, 2150]), rng.choice([3, 4, 10, 11])
        start = datetime.datetime(year, month, 1, tzinfo=datetime.UTC).timestamp()
        return int(start) + rng.randrange(0, 40 * 96) * 900

    micros = maybe(lambda: seconds() * 10**6 + rng.choice([0, 0, 1, 999_999, rng.randrange(10**6)]))
    days = maybe(lambda: seconds() // 86_400)
    few = one_of(0, 1, -1, 2, 3, 5, 12, 13, 28, 29, 30, 31, 60, 100, -40)
    zoned, day = pa.timestamp("us", "UTC"), 86_400 * 10**6
    decimals = map(Decimal, ("0", "59.999999", "60", "1.5", "30.25", "60.5", "-1"))
    durations = (0, 1, -1, day, -3 * day + 5, 25 * 3600 * 10**6, 10**13 - 7, -(10**12))
    return rows_of(
        {
            "ts": (zoned, micros),
            "t2": (zoned, micros),
            "n": (pa.timestamp("us"), micros),
            "d": (pa.date32(), days),
            "d2": (pa.date32(), days),
            "i": (pa.int32(), few),
            "j": (pa.int32(), few),
            "y": (pa.int32(), one_of(1, 1582, 1900, 1999, 2000, 2023, 2024, 2100, 9999, 0, -5)),
            "l": (pa.int64(), maybe(seconds)),
            "f": (pa.float64(), one_of(0.0, 1.5, -2.25, 1e9 + 0.123456, 0.3333333, 7.0)),
            "dec": (pa.decimal128(10, 6), one_of(*decimals)),
            "u": (pa.string(), one_of(*UNITS.split())),
            "z": (pa.string(), one_of(*ZONES.split())),
            "dt": (pa.duration("us"), one_of(*durations)),
        },
        count,
    )


def texts_of(block: str) -> list[str]:
    return [line for line in block.splitlines() if line]


@pytest.fixture(scope="module")
def spark() -> SparkSession:
    return session_with({**KEEP_PROJECTS, **INTERPRETED})


def check(spark: SparkSession, what: str, *, ansi: bool, zone: str, seed: int, count: int) -> None:
    spark.conf.set("spark.sql.ansi.enabled", str(ansi).lower())
    spark.conf.set("spark.sql.session.timeZone", zone)
    make, ddl, block = KINDS[what]
    rows = make(seed, count)
    assert differences(spark, frame_of(spark, rows, ddl), rows, texts_of(block)) == {}


KINDS: dict[str, tuple[Callable[[int, int], pa.RecordBatch], str, str]] = {
    "nested": (nested_rows, NESTED_DDL, NESTED),
    "times": (time_rows, TIME_DDL, TIMES),
}


@pytest.mark.parametrize("what", list(KINDS))
def test_a_function_gives_what_spark_gives_without_ansi_mode(
    spark: SparkSession, what: str
) -> None:
    check(spark, what, ansi=False, zone="America/New_York", seed=1, count=60)


@pytest.mark.parametrize(
    ("ansi", "zone"), modes_and_zones("America/New_York", "Australia/Sydney", "Asia/Kolkata", "UTC")
)
@pytest.mark.parametrize("what", list(KINDS))
def test_a_function_gives_what_spark_gives_in_every_mode_and_zone(
    spark: SparkSession, what: str, ansi: bool, zone: str
) -> None:
    check(spark, what, ansi=ansi, zone=zone, seed=2, count=400)


@pytest.mark.parametrize("text", texts_of(WINDOWS))
def test_a_window_is_the_one_spark_finds(spark: SparkSession, text: str) -> None:
    spark.conf.set("spark.sql.ansi.enabled", "true")
    rows = time_rows(3, 200)
    assert differences(spark, frame_of(spark, rows, TIME_DDL), rows, [text]) == {}


@pytest.mark.parametrize("text", texts_of(FAILING))
def test_what_spark_refuses_is_refused(spark: SparkSession, text: str) -> None:
    spark.conf.set("spark.sql.ansi.enabled", "true")
    rows = nested_rows(3, 60)
    frame = frame_of(spark, rows, NESTED_DDL)
    with pytest.raises(Exception, match=r"\[|same length"):
        frame.selectExpr(text).toArrow()
    assert differences(spark, frame, rows, [text]) == {}
