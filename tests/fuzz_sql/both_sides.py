"""Runs the same DataFrame in Spark and here, and compares the results cell by cell.

Spark runs it as a batch over a file, we run it as a stream that is fed the same rows. The rows of
both are Arrow columns with the same layout. Months are plain numbers on both sides, because
pyarrow has no type for them.
"""

from __future__ import annotations

import logging
import math
import re
import tempfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from epochal import testing
from epochal.testing.driver.staged_sink import visible_tables

_CONDITION = re.compile(r"\[([A-Z][A-Z_0-9.]+)\]")
_JAVA = re.compile(r"\b(?:[a-z]\w*\.)+([A-Z]\w*(?:Exception|Error))\b")
_QUOTED = re.compile(r"== SQL.* AS r(\d+)$", re.DOTALL | re.MULTILINE)
_NAMED = re.compile(r"column 'r(\d+)'")


@dataclass(frozen=True, slots=True)
class Failure:
    """Stands for the result of something that failed."""

    condition: str
    """Of the error, as `DIVIDE_BY_ZERO`; the name of its class if it has none."""
    message: str = ""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Failure):
            return NotImplemented
        same = self.condition == other.condition
        return same or self.message.split("\n")[0] == other.message.split("\n")[0]

    __hash__ = None  # type: ignore[assignment]


def oracle(spark: SparkSession) -> Any:
    """The object in Spark's JVM that answers many questions at once."""
    context: Any = spark.sparkContext
    text = Path(__file__).with_name("Oracle.java").read_text()
    # The way to the JVM knows classes by their names, so a changed class needs another name.
    name = f"Oracle{zlib.crc32(text.encode())}"
    if getattr(context, "oracle_of_tests", None) is None or context.oracle_of_tests[0] != name:
        jvm: Any = spark._jvm
        compiler = jvm.org.codehaus.janino.SimpleCompiler()
        compiler.setParentClassLoader(jvm.Thread.currentThread().getContextClassLoader())
        compiler.cook(text.replace("class Oracle", f"class {name}"))
        made = compiler.getClassLoader().loadClass(name)
        context.oracle_of_tests = (name, made.getDeclaredConstructor(None).newInstance(None))
    return context.oracle_of_tests[1]


def types_of(frame: DataFrame, texts: Sequence[str]) -> list[str]:
    """The JSON of the types of expressions.

    It begins with `?` if the value may differ each time, and is `!` and a condition if Spark
    refuses the expression.
    """
    answer = oracle(frame.sparkSession).types(frame._jdf, "\0".join(texts))
    return str(answer).split("\0") if texts else []


def spark_rows(frame: DataFrame) -> pa.Table | Failure:
    """The rows of a batch."""
    found = oracle(frame.sparkSession).rows(frame._jdf)
    if isinstance(found, str):
        return Failure(*found.split("\n", 1))
    return pa.ipc.open_stream(bytes(found)).read_all()


def our_rows(
    frame: DataFrame, fed: Sequence[pa.Table], *, mode: str = "append"
) -> pa.Table | Failure:
    """The rows of a stream after it was fed these rows, epoch by epoch."""
    try:
        with testing.Driver(frame, output_mode=mode) as driver:
            for rows in fed:
                driver.feed(rows)
                driver._running().end_epoch()  # rows as Python values end in the year 9999
            tables = list(visible_tables(driver.files).values())
            schema = driver._query.tree.schema
    except Exception as error:  # noqa: BLE001  an error is a result
        return failure_of(error)
    if not tables:
        return schema.empty_table()
    return tables[-1] if mode == "complete" else pa.concat_tables(tables)


def failure_of(error: BaseException) -> Failure:
    """The failure that an error is. The innermost cause counts."""
    while error.__cause__ is not None:
        error = error.__cause__
    found = _CONDITION.search(str(error)) or _JAVA.search(str(error))
    return Failure(found[1] if found else type(error).__name__, str(error))


def cells(column: Any) -> list[Any]:
    """The values of a column, which can be compared with ==. Times and dates are numbers."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
        if isinstance(column, pa.ChunkedArray):
            column = pa.concat_arrays(column.chunks)
    kind = column.type
    types = pa.types
    if types.is_struct(kind):
        members = [cells(column.field(i)) for i in range(kind.num_fields)]
        valid = column.is_valid().to_pylist()
        return [
            {kind.field(i).name + f"#{i}": member[row] for i, member in enumerate(members)}
            if valid[row]
            else None
            for row in range(len(column))
        ]
    if types.is_map(kind):
        return [
            [*zip(cells(row.values.field(0)), cells(row.values.field(1)), strict=True)]
            if row.is_valid
            else None
            for row in column
        ]
    if types.is_list(kind) or types.is_large_list(kind):
        return [cells(row.values) if row.is_valid else None for row in column]
    if types.is_temporal(kind) and not types.is_interval(kind):
        column = column.cast(pa.int32() if kind.bit_width == 32 else pa.int64())
    if types.is_string(kind):
        column = column.cast(pa.binary())  # Spark's texts need not be UTF-8
    values: list[Any] = column.to_pylist()
    return [_bits(value) for value in values] if types.is_floating(kind) else values


def _bits(value: float | None) -> Any:
    """A number as it is, but NaN equals NaN, and zero has a sign."""
    if value is None or value > 0 or value < 0:
        return value
    return "NaN" if math.isnan(value) else str(value)


def layout(kind: pa.DataType) -> str:
    """A type without the names of its parts and what may be null."""
    if pa.types.is_struct(kind):
        parts = [layout(kind.field(i).type) for i in range(kind.num_fields)]
        return f"struct<{', '.join(parts)}>"
    if pa.types.is_map(kind):
        return f"map<{layout(kind.key_type)}, {layout(kind.item_type)}>"
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return f"list<{layout(kind.value_type)}>"
    return str(kind)


def new_folder() -> Path:
    """An empty directory, which the process leaves behind no longer than it runs."""
    place = tempfile.TemporaryDirectory(prefix="epochal-sql-")
    _PLACES.append(place)
    return Path(place.name)


_PLACES: list[Any] = []


Run: TypeAlias = Callable[[DataFrame], "pa.Table | Failure"]
Result: TypeAlias = "pa.ChunkedArray[Any] | Failure"


def results(frame: DataFrame, texts: Sequence[str], run: Run) -> dict[str, Result]:
    """The column of each expression, or why it fails; in one run if none fails."""
    if not texts:
        return {}
    try:
        selected = selection(frame, texts)
    except Exception as error:  # noqa: BLE001  Spark refuses one of them
        found: pa.Table | Failure = failure_of(error)
    else:
        found = run(selected)
    if not isinstance(found, Failure):
        return dict(zip(texts, found.columns, strict=True))
    if len(texts) == 1:
        return {texts[0]: found}
    # Many errors name the expression that failed.
    named = {int(number) for number in _NAMED.findall(found.message)}
    named |= {int(number) for number in _QUOTED.findall(found.message)}
    failed = [text for number, text in enumerate(texts) if number in named]
    if failed and len(failed) < len(texts):
        others = [text for text in texts if text not in failed]
        found_alone = [results(frame, [text], run) for text in failed]
        return {key: value for part in (results(frame, others, run), *found_alone)
                for key, value in part.items()}  # fmt: skip
    half = len(texts) // 2
    return results(frame, texts[:half], run) | results(frame, texts[half:], run)


def selection(frame: DataFrame, texts: Sequence[str]) -> DataFrame:
    """The frame that computes expressions."""
    return frame.selectExpr(*(f"{text} AS r{i}" for i, text in enumerate(texts)))


def spark_results(frame: DataFrame, texts: Sequence[str]) -> dict[str, Result]:
    """Spark's columns, or why an expression fails; in one job."""
    if not texts:
        return {}
    spark: Any = frame.sparkSession
    # Expressions read the settings of the active session.
    spark._jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(spark._jsparkSession)
    stream, said = oracle(spark).values(frame._jdf, "\0".join(texts))
    table = pa.ipc.open_stream(bytes(stream)).read_all()
    lines = str(said).split("\0")
    return {
        text: Failure(*line.split("\n", 1)) if line else table.column(f"r{number}")
        for number, (text, line) in enumerate(zip(texts, lines, strict=True))
    }


def differing(wanted: Result, found: Result) -> int | None:
    """The first row in which two results differ; None if there is none."""
    if isinstance(wanted, Failure) or isinstance(found, Failure):
        return None if wanted == found else 0
    if layout(wanted.type) != layout(found.type) or len(wanted) != len(found):
        return 0
    pairs = zip(cells(wanted), cells(found), strict=True)
    return next((row for row, pair in enumerate(pairs) if pair[0] != pair[1]), None)


def shown(result: Result, row: int) -> str:
    """One cell of a result, for a message."""
    if isinstance(result, Failure):
        return f"{result.condition}: {result.message[:200]}"
    values = cells(result)
    return f"{values[row]!r} ({layout(result.type)})" if row < len(values) else "no row"


@contextmanager
def quiet() -> Iterator[None]:
    """Keep PySpark from logging every refused expression with its stack trace."""
    logger = logging.getLogger("SQLQueryContextLogger")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(level)
