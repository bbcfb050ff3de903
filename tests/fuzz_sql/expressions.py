"""Random typed expressions, made of the examples of Spark's functions and of operators.

An example is a template: each of its literals and constructors is a hole of a known type, which a
column, another literal or another expression of that type can fill. Spark's analyser is asked which
of the results are valid. So the signatures of functions need not be known here.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from tests.fuzz_sql.both_sides import types_of
from tests.fuzz_sql.examples import Example, Hole, filled, holes_of

OPERATORS = (
    '1 + 2', '1 - 2', '2 * 3', '7 / 2', '7 % 2', '7 div 2', '-(1)', '1.5D * 2.5D', '1.5D / 2.5D',
    '1.25BD * 2.5BD', '1.25BD / 2.5BD', '1.5BD % 2.25BD', '1 < 2', '1.5D <= 2.5D', "'a' = 'b'",
    "'a' <=> 'b'", "date'2020-01-01' < date'2020-01-02'", 'true AND false', 'true OR false',
    'NOT true', '1 IN (1, 2)', "'a' IN ('a', 'b')", '1.5D BETWEEN 0D AND 2D', "'abc' LIKE 'a%'",
    "'abc' RLIKE 'a.c'", "CASE WHEN 1 < 2 THEN 'a' ELSE 'b' END", 'CASE WHEN true THEN 1.5D END',
    'IF(true, 1, 2)', "coalesce('a', 'b')", 'nullif(1, 2)', "'a' || 'b'", "CAST('12' AS INT)",
    "CAST('1.5' AS DOUBLE)", "CAST('1.5' AS DECIMAL(10,2))", 'CAST(1.5D AS STRING)',
    'CAST(1.5D AS INT)', 'CAST(1.5D AS BIGINT)', 'CAST(12 AS TINYINT)', 'CAST(12L AS FLOAT)',
    'CAST(1.25BD AS DECIMAL(4,1))', "CAST('2020-01-01' AS DATE)",
    "CAST('2020-01-01' AS TIMESTAMP)", "CAST(timestamp'2020-01-01 00:00:00' AS STRING)",
    "CAST(date'2020-01-01' AS TIMESTAMP)", "CAST(timestamp'2020-01-01 00:00:00' AS DATE)",
    "CAST(timestamp_ntz'2020-01-01 00:00:00' AS TIMESTAMP)",
    "CAST(timestamp'2020-01-01 00:00:00' AS BIGINT)", 'CAST(12L AS TIMESTAMP)',
    'CAST(1 AS BOOLEAN)', 'CAST(true AS INT)', 'CAST(array(1, 2) AS STRING)',
    "CAST(map('a', 1) AS STRING)", 'CAST(array(1, 2) AS ARRAY<STRING>)',
    "CAST(named_struct('a', 1.5D, 'b', 'x') AS STRING)", "CAST(X'4142' AS STRING)",
    "CAST('ab' AS BINARY)", "CAST(interval '1' day AS STRING)",
    "CAST(interval '1-2' year to month AS STRING)", 'array(1, 2)[0]', "map('a', 1)['a']",
    "named_struct('a', 1.5D, 'b', 'x').b", "array(named_struct('a', 1, 'b', 'x')).a",
    "timestamp'2020-01-01 00:00:00' + interval '1' day", "date'2020-01-31' + interval '1' month",
    "timestamp'2020-01-01 00:00:00' - timestamp'2019-01-01 00:00:00'", "date'2020-01-31' - 1",
    "date'2020-01-31' - date'2020-01-01'", "interval '1' day * 2.5D", "interval '1' month / 2",
    'array(1, 2) = array(1, 3)',
    "named_struct('a', 1.5D, 'b', 'x') < named_struct('a', 1.5D, 'b', 'y')", 'greatest(1, 2, 3)',
    'least(1.5D, 2.5D)', 'concat(array(1), array(2))', "hash(1, 'a', 1.5D)",
    "xxhash64(array(1, 2), 'a')", "struct(1, 'a')", 'array(array(1, 2), array(3))',
    "hour(timestamp'2020-01-01 10:00:00')", "date_trunc('HOUR', timestamp'2020-01-01 00:00:00')",
    "CAST(time'10:00:00' AS STRING)", 'parse_json(\'{"a":1}\')',
    'variant_get(parse_json(\'{"a":1}\'), \'$.a\', \'int\')', "CAST(parse_json('1') AS INT)",
    "to_json(named_struct('a', 1.5D, 'b', 'x'))", 'from_json(\'{"a":1}\', \'a INT, b STRING\')',
    "date_format(timestamp'2020-01-01 00:00:00', 'yyyy-MM-dd HH:mm:ss XXX')",
    "to_utc_timestamp(timestamp'2020-01-01 00:00:00', 'Europe/Berlin')", 'round(1.25BD, 1)',
    'round(2.5D)', 'bround(2.5D, 0)',
)  # fmt: skip
"""Expressions of Spark's syntax, which the documentation of functions leaves out."""

CHANGING = ("current_", "curdate", "now", "localtime", "uuid", "rand", "shuffle", "uniform",
            "unix_timestamp()", "aes_encrypt", "input_file", "monotonically", "spark_partition_id",
            "java_method", "reflect", "session_user", "version", "try_reflect")  # fmt: skip
"""Parts of expressions whose value depends on when and where they are evaluated."""

SIZED = ("repeat", "space", "pad(", "sequence", "insert", "randstr", "sketch", "bitmap")
"""Parts of functions whose results can be larger than the memory: their numbers stay small."""

SCALED = ("round(", "ceil", "floor")
"""Parts of functions for which Spark computes ten to the power of a number, whatever it takes."""

NAMELESS = ("timestamp_ltz(", "timestamp_ntz(")
"""Parts of types that PySpark has no class for."""

TREES = {"integer": "whole", "long": "whole", "short": "whole", "byte": "whole",
         "double": "fraction", "float": "fraction"}  # fmt: skip


def family(kind: str) -> str:
    """What types have in common that can often take each other's place. `kind` is JSON."""
    return _family(json.loads(kind))


def _family(kind: Any) -> str:
    if isinstance(kind, str):
        name = kind.partition("(")[0]
        return TREES.get(name, "interval" if name.startswith("interval") else name)
    match kind["type"]:
        case "array":
            return f"array<{_family(kind['elementType'])}>"
        case "map":
            return f"map<{_family(kind['keyType'])},{_family(kind['valueType'])}>"
        case "struct":
            return f"struct<{','.join(_family(part['type']) for part in kind['fields'])}>"
    return str(kind["type"])


@dataclass(frozen=True, slots=True)
class Template:
    """An expression with holes."""

    text: str
    holes: tuple[Hole, ...]


@dataclass(frozen=True, slots=True)
class Tree:
    """An expression: a template whose holes are filled, or left as they are (None)."""

    template: Template
    parts: tuple[Tree | None, ...] = ()
    kind: str = field(default="", compare=False)
    """The JSON of its type."""

    @property
    def text(self) -> str:
        values = [None if part is None else part.inner for part in self.parts]
        return filled(self.template.text, self.template.holes, values)

    @property
    def inner(self) -> str:
        """The text as a part of another expression."""
        return f"({self.text})" if self.parts else self.text

    @property
    def depth(self) -> int:
        return 1 + max((part.depth for part in self.parts if part), default=0)


def leaf(text: str, kind: str) -> Tree:
    """A column or a literal."""
    return Tree(Template(text, ()), (), kind)


_HOLES: dict[str, list[Hole]] = {}


def templates(spark: SparkSession, row: DataFrame, texts: Sequence[str]) -> list[Template]:
    """The templates of examples. Of holes in one another, one is chosen when it is filled."""
    for text in texts:
        if text not in _HOLES:
            _HOLES[text] = holes_of(spark, text)
    made = _HOLES
    unknown = list(
        dict.fromkeys(
            text[hole.start : hole.end] for text in texts for hole in made[text] if not hole.kind
        )
    )
    kinds = dict(zip(unknown, types_of(row, unknown), strict=True))
    found = []
    for text in texts:
        holes = []
        for hole in made[text]:
            kind = hole.kind or kinds[text[hole.start : hole.end]]
            if kind[0] not in "!?":
                holes.append(Hole(hole.start, hole.end, kind))
        found.append(Template(text, tuple(holes)))
    return found


def usable(example: Example) -> bool:
    """Whether an example is an expression with the same value every time."""
    if example.relation or example.rest or example.group in ("generator_funcs", "window_funcs"):
        return False
    if example.function in ("assert_true", "raise_error", "stack", "sleep"):
        return False
    return not any(word in example.sql for word in CHANGING)


class Grower:
    """Grows expressions from templates over the columns of a frame."""

    def __init__(self, chance: random.Random, row: DataFrame, made: Sequence[Template]) -> None:
        self._chance, self._row, self._templates = chance, row, list(made)
        names = row.columns
        kinds = types_of(row, names)
        self.leaves = [leaf(name, kind) for name, kind in zip(names, kinds, strict=True)]
        self.leaves += [leaf(hole_text(t, hole), hole.kind) for t in made for hole in t.holes]
        self._by_family: dict[str, list[Tree]] = {}
        for each in self.leaves:
            self._by_family.setdefault(family(each.kind), []).append(each)

    def grow(self, count: int, depth: int) -> list[Tree]:
        """About `count` expressions, some as deep as `depth`."""
        grown: list[Tree] = []
        for _ in range(depth):
            wanted = [self._one() for _ in range(count * 2 // depth)]
            wanted = [tree for tree in dict.fromkeys(wanted) if tree.depth <= depth + 1]
            kinds = types_of(self._row, [tree.text for tree in wanted])
            valid = [
                Tree(tree.template, tree.parts, kind)
                for tree, kind in zip(wanted, kinds, strict=True)
                if kind[0] not in "!?" and not any(part in kind for part in NAMELESS)
            ]
            for tree in valid:
                self._by_family.setdefault(family(tree.kind), []).append(tree)
            grown += valid
        return list(dict.fromkeys(grown))[-count:]

    def _one(self) -> Tree:
        template = self._chance.choice(self._templates)
        parts: list[Tree | None] = []
        end = -1
        for hole in template.holes:
            part = None if hole.start < end else self._part(template, hole)
            end = hole.end if part is not None else end
            parts.append(part)
        return Tree(template, tuple(parts))

    def _part(self, template: Template, hole: Hole) -> Tree | None:
        """What fills a hole; None if its literal stays."""
        pick = self._chance.random()
        whole = family(hole.kind) == "whole"
        sized = any(word in template.text for word in SIZED)
        if sized or (whole and any(word in template.text for word in SCALED)):
            small = whole and "sequence" not in template.text
            return leaf("k", '"integer"') if small and pick < 0.5 else None
        if pick < 0.3:
            return None
        if pick < 0.4:
            return self._chance.choice(self.leaves)
        fitting = self._by_family.get(family(hole.kind), [])
        columns = [tree for tree in fitting if tree.text.isidentifier()]
        if pick < 0.7 and columns:
            return self._chance.choice(columns)
        return self._chance.choice(fitting) if fitting else None


def hole_text(template: Template, hole: Hole) -> str:
    return template.text[hole.start : hole.end]
