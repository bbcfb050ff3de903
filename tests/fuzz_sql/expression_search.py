"""Searches for expressions whose values here differ from Spark's, and shrinks what it finds."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from tests.fuzz_sql.both_sides import (
    Failure,
    Result,
    cells,
    differing,
    new_folder,
    our_rows,
    results,
    shown,
    spark_results,
    spark_rows,
)
from tests.fuzz_sql.examples import read_examples
from tests.fuzz_sql.expressions import OPERATORS, Grower, Tree, templates, usable

from epochal import testing

ZONES = ("UTC", "America/New_York", "Europe/Berlin", "Asia/Kathmandu", "Australia/Lord_Howe",
         "America/Sao_Paulo", "Pacific/Apia", "Africa/Monrovia", "+05:45")  # fmt: skip

SCHEMA = {
    "by": "tinyint", "sh": "smallint", "i": "int", "j": "int", "k": "int", "l": "bigint",
    "m": "bigint", "f": "float", "d": "double", "e": "double", "bo": "boolean", "bp": "boolean",
    "p": "decimal(5,2)", "q": "decimal(18,4)", "x": "decimal(38,10)", "y": "decimal(38,0)",
    "s": "string", "t": "string", "sn": "string", "sd": "string", "sj": "string", "sz": "string",
    "b": "binary", "c": "binary", "dt": "date", "du": "date", "ts": "timestamp", "tu": "timestamp",
    "tn": "timestamp_ntz", "tm": "time(6)", "ym": "interval year to month",
    "di": "interval day to second", "ai": "array<int>", "ad": "array<double>",
    "at": "array<string>", "aa": "array<array<int>>", "mt": "map<string,int>",
    "mi": "map<int,string>", "st": "struct<a:double,b:string>",
    "su": "array<struct<a:int,b:string>>",
}  # fmt: skip
"""The columns of a file, and their types in Spark."""

DERIVED = {"v": "try_parse_json(sj)", "ivl": "make_interval(0, k, by, 0, 0, 0, 1.5)"}
"""Columns that are computed from others, because a file cannot have them as they are."""

WORDS = [
    '', ' ', 'a', 'A', 'ab', 'abc', 'Abc dEf', 'hello world', 'ünï çödé', ' x ', '50%', 'a_b',
    'a\\b', '日本語', '😀b', '👩\u200d👩\u200d👧', 'e\u0301a\u0301', 'é', 'straße', 'ﬁsh ﬂag',
    'İ\u0131Ii', 'ǅ', 'Σίσυφος', 'a.b.c', 'a,b,c', 'aaa', 'ABAB', 'xyz\n', 'a\tb', 'a1b22c333',
    '\x00', 'a\u200bb', '\xa0x', 'http://u@h.example:80/p/q?x=1&y=a%20b#f', 'null', 'NaN',
    '[1,2]', 'Spark SQL',
]  # fmt: skip
NUMBERS = [
    '0', '1', '-5', '12', ' 12 ', '1.5', '-0.0', '1e3', 'NaN', 'Infinity', '0x1F', '99999999999',
    '9223372036854775808', '1,234.56', '+7', '1e400', '.5', '5.', '', '1 2', '--1', '0012',
]  # fmt: skip
DATES = [
    '2024-02-29', '2023-02-29', '1582-10-10', '0001-01-01', '9999-12-31', '10000-01-01',
    '2024-03-31 02:30:00', '2024-10-27 02:30:00.123456', '1970-01-01T00:00:00Z', '2024-1-5',
    '2024', '2024-05', ' 2024-05-06 ', 'epoch', 'now x', '12:34:56', '2024-05-06 07:08:09+02:00',
    '2016-12-31 23:59:59', '1883-11-18 12:00:00', '31/12/2020', '',
]  # fmt: skip
DOCUMENTS = [
    '{"a":1,"b":"x"}', '{"a":null}', '[1,2,3]', '{"a":{"b":[1,{"c":2.5}]}}', '"text"', '1e400',
    '{', '', 'null', 'true', '{"a":1,"a":2}', '[{"a":1},{"a":"é😀"}]',
    '{"A":1.50,"b":12345678901234567890}', '{"t":"2024-05-06T07:08:09Z"}', ' 1 ',
]  # fmt: skip


class Rows:
    """Makes rows from one seed."""

    def __init__(self, chance: random.Random, count: int, *, mild: bool = False) -> None:
        """`mild` leaves out most of what makes functions fail."""
        self._chance, self.count, self._mild = chance, count, mild

    def table(self) -> pa.Table:
        """The columns of SCHEMA, as they are in a file."""
        whole = {8: "by", 16: "sh", 32: "i", 64: "l"}
        made = {name: self._integers(bits) for bits, name in whole.items()}
        made |= {"j": self._integers(32), "m": self._integers(64)}
        made["k"] = self._of(lambda: self._chance.randint(-3, 12), [], pa.int32())
        made["f"] = self._doubles(pa.float32())
        made |= {"d": self._doubles(pa.float64()), "e": self._doubles(pa.float64())}
        booleans = (True, False)
        made |= {name: self._of(self._pick(booleans), [], pa.bool_()) for name in ("bo", "bp")}
        for name, precision, scale in (("p", 5, 2), ("q", 18, 4), ("x", 38, 10), ("y", 38, 0)):
            made[name] = self._decimals(precision, scale)
        for name, texts in (("s", WORDS), ("t", WORDS), ("sn", NUMBERS), ("sd", DATES)):
            made[name] = self._of(self._pick(texts), [], pa.string())
        made["sj"] = self._of(self._pick(DOCUMENTS), [], pa.string())
        made["sz"] = self._of(self._pick(ZONES), ["Nowhere"], pa.string())
        for name in ("b", "c"):
            made[name] = self._of(self._bytes, [b"\xff\xfe", b"\xc3"], pa.binary())
        for name in ("dt", "du"):
            days = self._of(lambda: self._chance.randint(-5000, 40000), _DAYS, pa.int32())
            made[name] = days.cast(pa.date32())
        for name in ("ts", "tu", "tn"):
            micros = self._of(self._moment, _MICROS, pa.int64())
            made[name] = micros.cast(pa.timestamp("us", None if name == "tn" else "UTC"))
        day = 86_400_000_000
        made["tm"] = self._of(lambda: self._chance.randrange(day), [0, day - 1], pa.int64())
        made["tm"] = made["tm"].cast(pa.time64("us"))
        made["ym"] = self._of(lambda: self._chance.randint(-50, 50), [_INT, -_INT], pa.int32())
        made["di"] = self._of(self._span, [_LONG, -_LONG, 1, -1], pa.int64())
        made |= self._nested()
        return pa.table({name: made[name] for name in SCHEMA})

    def _nested(self) -> dict[str, Any]:
        integer, text = pa.int32(), pa.string()

        def items(value: Any) -> list[Any]:
            return [self._maybe(value) for _ in range(self._chance.randint(0, 4))]

        def small() -> int:
            return self._chance.randint(-3, 5)

        def number() -> float:
            return self._chance.choice([0.0, -0.0, 1.5, float("nan"), -2.5, 1e300])

        words = self._pick(WORDS)

        def pair() -> dict[str, Any]:
            return {"a": self._maybe(number), "b": self._maybe(words)}

        def whole_pair() -> dict[str, Any]:
            return {"a": self._maybe(small), "b": self._maybe(words)}

        def by_text() -> list[Any]:
            return [(key, self._maybe(small)) for key in {words() for _ in range(3)}]

        def by_number() -> list[Any]:
            return [(key, self._maybe(words)) for key in {small() for _ in range(3)}]

        whole = pa.struct([("a", integer), ("b", text)])
        return {
            "ai": self._of(lambda: items(small), [[]], pa.list_(integer)),
            "ad": self._of(lambda: items(number), [[]], pa.list_(pa.float64())),
            "at": self._of(lambda: items(words), [[]], pa.list_(text)),
            "aa": self._of(lambda: items(lambda: items(small)), [], pa.list_(pa.list_(integer))),
            "mt": self._of(by_text, [[]], pa.map_(text, integer)),
            "mi": self._of(by_number, [[]], pa.map_(integer, text)),
            "st": self._of(pair, [], pa.struct([("a", pa.float64()), ("b", text)])),
            "su": self._of(lambda: items(whole_pair), [[]], pa.list_(whole)),
        }

    def _maybe(self, make: Any) -> Any:
        return None if self._chance.random() < 0.2 else make()

    def _of(self, make: Any, odd: list[Any], kind: pa.DataType) -> Any:
        def one() -> Any:
            if self._chance.random() < 0.15:
                return None
            if odd and not self._mild and self._chance.random() < 0.3:
                return self._chance.choice(odd)
            return make()

        return pa.array([one() for _ in range(self.count)], kind)

    def _pick(self, values: Any) -> Any:
        return lambda: self._chance.choice(values)

    def _integers(self, bits: int) -> Any:
        low, high = -(1 << bits - 1), (1 << bits - 1) - 1
        wide = (-100, 100) if self._mild else (low, high)

        def one() -> int:
            return self._chance.randint(*self._chance.choice([wide, (-100, 100), (-5, 5)]))

        return self._of(one, [0, 1, -1, low, high, low + 1], pa.int64()).cast(f"int{bits}")

    def _doubles(self, kind: pa.DataType) -> Any:
        odd = [0.0, -0.0, float("nan"), float("inf"), -float("inf"), 5e-324, 1.7976931348623157e308,
               0.5, 2.5, -2.5, 1e19, 0.285, 2.0**53]  # fmt: skip

        def one() -> float:
            # Few digits: Java 17 prints some doubles of many digits with one digit too many.
            size = self._chance.choice([1, 10, 1000, 1e9])
            return round(self._chance.uniform(-size, size), self._chance.randint(0, 3))

        return self._of(one, odd, pa.float64()).cast(kind, safe=False)

    def _decimals(self, precision: int, scale: int) -> Any:
        largest = 10**precision - 1

        def one() -> Decimal:
            digits = self._chance.randint(1, min(precision, scale + 3 if self._mild else precision))
            size = 10**digits - 1
            return scaled(self._chance.randint(-size, size))

        def scaled(number: int) -> Decimal:
            sign, digits = int(number < 0), tuple(int(digit) for digit in str(abs(number)))
            return Decimal((sign, digits, -scale))

        odd = [scaled(number) for number in (0, largest, -largest, 1)]
        return self._of(one, odd, pa.decimal128(precision, scale))

    def _bytes(self) -> bytes:
        if self._chance.random() < 0.5:
            return str(self._chance.choice(WORDS)).encode()
        return self._chance.randbytes(self._chance.randint(0, 9))

    def _span(self) -> int:
        size = self._chance.choice([10**3, 10**7, 10**11, 10**14])
        return self._chance.randint(-size, size)

    def _moment(self) -> int:
        if self._chance.random() < 0.4:
            near = self._chance.choice(_CHANGES)
            return near + self._chance.randint(-2, 2) * 1_800_000_000 + self._chance.choice((0, 1))
        return self._chance.randint(-(10**15), 4 * 10**15)


_INT, _LONG = (1 << 31) - 1, (1 << 63) - 1
_DAYS = [-719162, -719163, -141428, -141427, -141417, 2932896, 2932897, 0, -1, 19782, -1_000_000]
_MICROS = [day * 86_400_000_000 + 1 for day in _DAYS] + [0, -1, 999_999, -62_135_596_800_000_000]


def _clock_changes() -> list[int]:
    """Moments at which clocks change in some of the zones, in microseconds."""
    found = []
    for name in ZONES[1:-1]:
        zone = ZoneInfo(name)
        hours = [1_700_000_000 + 3600 * n for n in range(24 * 400)]
        hours += [-1_000_000_000 + 3600 * 24 * n for n in range(9000)]
        offsets = [datetime.fromtimestamp(at, UTC).astimezone(zone).utcoffset() for at in hours]
        changes = [
            at for at, old, new in zip(hours[1:], offsets, offsets[1:], strict=False) if old != new
        ]
        found += [at // 3600 * 3600 * 1_000_000 for at in changes[:2] + changes[-4:]]
    return found


_CHANGES = _clock_changes()


def stored(spark: SparkSession, rows: pa.Table) -> DataFrame:
    """The rows as a DataFrame that reads them from one file."""
    place = new_folder()
    pq.write_table(rows, place / "rows.parquet")
    schema = ", ".join(f"{name} {SCHEMA[name]}" for name in rows.column_names)
    return spark.read.schema(schema).parquet(str(place))


FIXED = {
    "spark.sql.timeType.enabled": "true",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
"""Settings of a session that runs random SQL. Compiling code would take longer than running it."""


MOST_RUNS = 30
"""How many smaller expressions of one seed are tried."""

MOST_FAILING = 2
"""How many expressions of a seed that fail in Spark are compared: each needs a query of its own."""


@dataclass(frozen=True, slots=True)
class Difference:
    """An expression, and the row for which its values differ."""

    seed: int
    settings: dict[str, str]
    text: str
    row: dict[str, Any]
    wanted: str
    found: str

    def __str__(self) -> str:
        settings = " ".join(f"{key.removeprefix('spark.sql.')}={value}" for key, value in
                            self.settings.items())  # fmt: skip
        row = ", ".join(f"{name}={value!r}" for name, value in self.row.items())
        return (
            f"seed {self.seed} ({settings}): SELECT {self.text}; row: {row}; "
            f"Spark has {self.wanted}, we have {self.found}"
        )


@dataclass(slots=True)
class Sides:
    """The same rows for Spark and for us."""

    batch: DataFrame
    stream: DataFrame
    fed: pa.Table

    @staticmethod
    def of(spark: SparkSession, rows: pa.Table) -> Sides:
        batch = stored(spark, rows)
        stream = testing.frame(batch.schema, spark=spark)
        derived = [f"{text} AS {name}" for name, text in DERIVED.items()]
        fed = spark_rows(batch)
        assert isinstance(fed, pa.Table)
        return Sides(batch.selectExpr("*", *derived), stream.selectExpr("*", *derived), fed)

    def theirs(self, texts: Sequence[str]) -> dict[str, Result]:
        return spark_results(self.batch, texts)

    def ours(self, texts: Sequence[str]) -> dict[str, Result]:
        return results(self.stream, texts, lambda frame: our_rows(frame, [self.fed]))


@dataclass(slots=True)
class Tally:
    """How many expressions were compared."""

    equal: int = 0
    failing: int = 0
    """Equal, because both fail in the same way."""
    cells: int = 0
    differences: list[Difference] = field(default_factory=list)


class ExpressionSearch:
    """Compares expressions that follow from a seed."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark, self._runs_left = spark, MOST_RUNS
        for key, value in FIXED.items():
            spark.conf.set(key, value)
        examples = [each for found in read_examples(spark).values() for each in found]
        self._examples = list(dict.fromkeys(e.columns for e in examples if usable(e)))

    def run(self, seed: int, tally: Tally, *, count: int = 600, depth: int = 4) -> None:
        """Grow and compare the expressions of a seed."""
        chance = random.Random(seed)
        settings = {
            "spark.sql.ansi.enabled": chance.choice(("true", "false", "false")),
            "spark.sql.session.timeZone": chance.choice(ZONES),
        }
        for key, value in settings.items():
            self._spark.conf.set(key, value)
        mild = settings["spark.sql.ansi.enabled"] == "true" and chance.random() < 0.8
        rows = Rows(chance, chance.choice([1, 2, 5, 50]), mild=mild).table()
        sides = Sides.of(self._spark, rows)
        texts = chance.sample(self._examples, 60) + chance.sample(OPERATORS, 30)
        row = without_rows(sides.batch)
        grower = Grower(chance, row, templates(self._spark, row, texts))
        trees = {tree.text: tree for tree in grower.grow(count, depth)}
        theirs, ours = self._both(sides, list(trees))
        self._runs_left = MOST_RUNS
        for text, found in ours.items():
            tree, wanted = trees[text], theirs[text]
            if differing(wanted, found) is not None:
                difference = self._shrunk(seed, settings, tree, sides, (wanted, found))
                if difference is not None:
                    tally.differences.append(difference)
            elif isinstance(wanted, Failure):
                tally.failing += 1
            else:
                tally.equal += 1
                tally.cells += len(wanted)

    def _both(
        self, sides: Sides, texts: Sequence[str]
    ) -> tuple[dict[str, Result], dict[str, Result]]:
        theirs = sides.theirs(texts)
        valid = [text for text in texts if not isinstance(theirs[text], Failure)]
        ours = sides.ours(valid)
        for text in [text for text in texts if text not in ours][:MOST_FAILING]:
            ours |= sides.ours([text])
        return theirs, ours

    def _shrunk(
        self,
        seed: int,
        settings: dict[str, str],
        tree: Tree,
        sides: Sides,
        among_others: tuple[Result, Result],
    ) -> Difference | None:
        """The smallest expression and the only row that show the same difference.

        An expression that is right alone is wrong among others, unless one of these has failed.
        """

        def row_of(tree: Tree) -> int | None:
            theirs, ours = self._both(sides, [tree.text])
            return differing(theirs[tree.text], ours[tree.text])

        (wanted, found), smaller = among_others, self._runs_left > 0
        if smaller and row_of(tree) is not None:
            while smaller:
                smaller = False
                for candidate in _smaller(tree):
                    self._runs_left -= 1
                    if self._runs_left > 0 and row_of(candidate) is not None:
                        tree, smaller = candidate, True
                        break
            theirs, ours = self._both(sides, [tree.text])
            wanted, found = theirs[tree.text], ours[tree.text]
        elif isinstance(wanted, Failure) or isinstance(found, Failure):
            return None
        row = differing(wanted, found)
        assert row is not None, f"{tree.text} has other values each time"
        names = [name for name in sides.fed.column_names if _uses(tree.text, name)]
        values = {name: cells(sides.fed.column(name))[row] for name in names}
        return Difference(seed, settings, tree.text, values, shown(wanted, row), shown(found, row))


def without_rows(frame: DataFrame) -> DataFrame:
    """A frame with the same columns, which Spark analyses faster: it reads nothing."""
    spark: Any = frame.sparkSession
    rows = spark._jvm.java.util.ArrayList()
    return DataFrame(spark._jsparkSession.createDataFrame(rows, frame._jdf.schema()), spark)


def _smaller(tree: Tree) -> Iterator[Tree]:
    """Expressions with less in them: a part alone, or a literal in the place of a part."""
    yield from (part for part in tree.parts if part is not None and part.parts)
    for number, part in enumerate(tree.parts):
        if part is None:
            continue
        before, after = tree.parts[:number], tree.parts[number + 1 :]
        yield Tree(tree.template, (*before, None, *after))
        for less in _smaller(part):
            yield Tree(tree.template, (*before, less, *after))


def _uses(text: str, name: str) -> bool:
    return re.search(rf"\b{name}\b", text) is not None
