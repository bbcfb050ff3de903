"""Reads random files as our file source does and as Spark does, and compares row by row.

`make fuzz-sql` reads many.
"""

from __future__ import annotations

import re
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType
from tests.frames.odd_files import Case

from epochal.connectors.file.file_reader import METADATA
from epochal.connectors.file.file_source import FileSource, FileSourceOptions
from epochal.connectors.file.spark_reader import SPARK_SCHEMA
from epochal.errors import EpochalError
from epochal.files.local import LocalFiles

FILES_PER_CASE = 20
_CONDITION = re.compile(r"\[([A-Z][A-Z0-9_]+(?:\.[A-Z0-9_]+)?)\]")
_JAVA = re.compile(r"requirement failed: [^.\n]*|\bjava(?:\.\w+)+(?:Exception|Error)\b")


def read_theirs(spark: SparkSession, case: Case, folder: Path) -> Any:
    """Spark's rows by the name of their file, or what kind of error it raises."""
    reader = spark.read.format(case.form).options(**case.options)
    if case.form != "binaryFile":
        reader = reader.schema(case.ddl)
    try:
        frame = reader.load(str(folder)).select(
            *(f"`{name}`" for name in case.wanted), "_metadata.file_name"
        )
        table = frame.toArrow()
    except (PySparkException, Py4JJavaError) as error:
        return condition_of(str(error))
    return by_file(table, case)


def read_ours(spark: SparkSession, case: Case, folder: Path, state: Path) -> Any:
    """Our rows by the name of their file, or what kind of error they end with."""
    kinds = StructType.fromDDL(case.ddl)
    name = pa.field("file_name", pa.string())
    columns = [*to_arrow_schema(kinds, timezone="UTC"), hidden(name)]
    schema = pa.schema(columns, {SPARK_SCHEMA: kinds.json().encode()})
    options = FileSourceOptions(path=str(folder), reader_options=case.options)
    files = LocalFiles(state, durable=False)
    form = case.form.lower()
    with closing(FileSource(form, options, schema, files, 0, spark=spark, watch=False)) as source:
        try:
            end = source.latest()
            readers = source.readers.only(frozenset({*case.wanted, "_metadata"}))
            with closing(readers.open(source.initial())) as reader:
                reader.limit(end)
                batches = drained(reader, end)
        except EpochalError as error:
            return condition_of(str(error))
    table = pa.Table.from_batches(batches, schema)
    facts: Any = table["_metadata"].combine_chunks()
    flat = table.select(list(case.wanted)).append_column(name, facts.field(0))
    return by_file(flat, case)


def hidden(field: pa.Field[Any]) -> pa.Field[Any]:
    """The column `_metadata` with one field."""
    return pa.field("_metadata", pa.struct([field]), metadata={METADATA: b"true"})


def drained(reader: Any, end: Any) -> list[pa.RecordBatch]:
    """All batches up to a position."""
    found = []
    while reader.positions() != end:
        batch = reader.read(1000)
        if batch is not None:
            found.append(batch)
        else:
            time.sleep(0.002)  # the reader's thread reads ahead, and says nothing
    return found


def by_file(table: pa.Table, case: Case) -> dict[str, list[str]]:
    kinds = to_arrow_schema(StructType.fromDDL(case.ddl), timezone="UTC")
    types = [*(kinds.field(name).type for name in case.wanted), pa.string()]
    whole: list[Any] = [column.combine_chunks() for column in table.columns]
    columns = [
        column.cast(kind).cast(raw(kind)).to_pylist()
        for column, kind in zip(whole, types, strict=True)
    ]
    found: dict[str, list[str]] = {}
    for *values, name in zip(*columns, strict=True):
        found.setdefault(name.decode(), []).append(repr(values))
    return found


def raw(kind: Any) -> Any:
    """A type with numbers for times and bytes for text: Python's have fewer values."""
    types = pa.types
    if types.is_date32(kind):
        return pa.int32()
    if types.is_timestamp(kind):
        return pa.int64()
    if types.is_string(kind):
        return pa.binary()
    if types.is_list(kind):
        return pa.list_(kind.value_field.with_type(raw(kind.value_type)))
    if types.is_map(kind):
        return pa.map_(raw(kind.key_type), kind.item_field.with_type(raw(kind.item_type)))
    if types.is_struct(kind):
        return pa.struct([field.with_type(raw(field.type)) for field in kind])
    return kind


def condition_of(message: str) -> str:
    """What kind of error a message is about: its condition, else the innermost error of Java."""
    kinds = _CONDITION.findall(message)[:1] or _JAVA.findall(message)[-1:]
    return kinds[0] if kinds else message[:300]


def difference(spark: SparkSession, case: Case, folder: Path) -> str | None:
    """How our rows differ from Spark's; None if they are equal."""
    case.write(folder / "in")
    theirs = read_theirs(spark, case, folder / "in")
    ours = read_ours(spark, case, folder / "in", folder / "state")
    if ours == theirs:
        return None
    said = (
        f"seed {case.seed}: {case.form} ({case.ddl}) {case.options} {case.settings} {case.wanted}"
    )
    if isinstance(ours, str) or isinstance(theirs, str):
        return f"{said}\n  spark: {str(theirs)[:600]}\n  ours:  {str(ours)[:600]}"
    for name in sorted({*ours, *theirs}):
        if ours.get(name) != theirs.get(name):
            texts = (case.files[name], theirs.get(name), ours.get(name))
            return "\n".join([said, f"  {name}: {texts[0]!r}", *(f"  {t}" for t in texts[1:])])
    return said
