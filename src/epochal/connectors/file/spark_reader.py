"""Reads files with Spark's own readers: all formats, options and modes mean what they mean there.

On the driver Spark makes the reader, from the session, the options and the columns that the query
uses. Tasks send it to the evaluator, which applies it to files.

Note: an evaluator keeps a file open between requests, but every request says from which row to go
on. After a crash the same request therefore has the same answer.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

import msgspec
import pyarrow as pa

from epochal.connectors.file.plain_parquet import USUAL, can_be_plain
from epochal.errors import OptionError
from epochal.evaluator.evaluator_client import CLIENT, EvaluatorStep, Session
from epochal.evaluator.spark_classes import (
    active_session,
    class_of,
    object_of,
    scala_map,
    serialized,
    session_of,
)
from epochal.files import scheme_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SPARK_SCHEMA = b"spark_schema"
"""The key in a schema's metadata of Spark's own schema, if that is known."""

_SOURCES = "org.apache.spark.sql.execution.datasources"


@dataclass(frozen=True, slots=True)
class SparkReader:
    """A reader of Spark's, as tasks get it."""

    session: Session
    scan: bytes
    """A serialised `FileScanRDD` without files."""
    hadoop: bytes
    """The compressed Hadoop configuration."""
    zone: str
    """The time zone of partition values."""
    fields: Mapping[str, Any]
    """All columns of the source as fields of Spark's schema, by name."""
    columns: tuple[str, ...]
    """The columns that are read from files."""
    plain: bool
    """Whether Arrow may read files instead, if they are plain (`plain_parquet.py`)."""
    copies: bool
    """Whether the files must be copied to the local disk, because Hadoop has no way to them."""

    def rows(
        self, url: str, size: int, modified_ms: int, row: int, partitions: Mapping[str, str]
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a file from `row` on: `columns`, and then the partition columns."""
        step = _step(self, tuple(partitions))
        texts = [text.encode() for text in partitions.values()]
        more = True
        while more:
            facts = (url, str(size), str(modified_ms), str(row))
            answer = CLIENT.run(step, *(text.encode() for text in facts), *texts)
            more = answer[-1] != 0
            for batch in pa.ipc.open_stream(pa.py_buffer(answer)[:-1]):
                row += batch.num_rows
                yield batch

    def __hash__(self) -> int:
        return hash(self.scan)


@lru_cache(maxsize=64)
def _step(reader: SparkReader, partitions: tuple[str, ...]) -> EvaluatorStep:
    # A partition column may also be in the file. The names of columns here are their positions.
    fields = [reader.fields[name] for name in (*reader.columns, *partitions)]
    numbered = [
        {**field, "name": str(number), "nullable": True} for number, field in enumerate(fields)
    ]
    schema = msgspec.json.encode({"type": "struct", "fields": numbered}).decode()
    last = (str(len(reader.columns)).encode(), reader.zone.encode())
    return EvaluatorStep("file", reader.session, schema, (reader.scan, reader.hadoop, *last))


def make_reader(
    spark: SparkSession,
    form: str,
    options: Mapping[str, str],
    schema: pa.Schema,
    in_file: Sequence[str],
    wanted: frozenset[str] | None,
    root: str,
) -> SparkReader:
    """Let Spark make the reader of a format; OptionError, with Spark's message, if it refuses.

    `in_file` are the columns that files below `root` contain, and `wanted` those that the query
    uses.
    """
    from pyspark.errors import PySparkException

    try:
        with active_session(spark):
            return _Maker(spark).make(form, options, schema, in_file, wanted, root)
    except PySparkException as error:
        raise OptionError(f"{form}: {str(error).partition(chr(10))[0].rstrip('.')}.") from error


class _Maker:
    """Calls Spark's classes in the JVM of the driver."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._jvm: Any = spark._jvm
        self._js: Any = spark._jsparkSession

    def make(
        self,
        form: str,
        options: Mapping[str, str],
        schema: pa.Schema,
        in_file: Sequence[str],
        wanted: frozenset[str] | None,
        root: str,
    ) -> SparkReader:
        fields = _spark_fields(schema)
        columns = tuple(name for name in in_file if wanted is None or name in wanted)
        data, required = (self._schema([fields[n] for n in names]) for names in (in_file, columns))
        reader = self._format(form)
        for field in data.fields():
            if not reader.supportDataType(field.dataType()):
                kind = field.dataType().simpleString()
                raise OptionError(f"{form}: column {field.name()} of type {kind} cannot be read.")
        # Rows one by one, not vectors of columns.
        given = self._options({**options, "returning_batch": "false"})
        state = self._js.sessionState()
        hadoop = state.newHadoopConfWithOptions(given)
        none = self._object("scala.collection.immutable.Nil")
        read = reader.buildReaderWithPartitionValues(
            self._js, data, self._schema([]), required, none, given, hadoop
        )
        scan = self._class(f"{_SOURCES}.FileScanRDD")(
            *(self._js, read, none, required, none, self._options({})),
            self._class("org.apache.spark.sql.catalyst.FileSourceOptions")(given),
        )
        shared = self._class("org.apache.spark.util.SerializableConfiguration")(hadoop)
        lower = {key.lower(): text for key, text in options.items()}
        return SparkReader(
            session=session_of(self._spark),
            scan=serialized(self._jvm, scan),
            hadoop=zlib.compress(serialized(self._jvm, shared)),
            zone=lower.get("timezone") or str(state.conf().sessionLocalTimeZone()),
            fields=fields,
            columns=columns,
            plain=form == "parquet"
            and can_be_plain(
                [schema.field(name) for name in columns],
                options,
                {key: str(state.conf().getConfString(key)) for key in USUAL},
            ),
            copies=not self._reaches(root, hadoop),
        )

    def _reaches(self, root: str, hadoop: Any) -> bool:
        """Whether Hadoop has a class for a file system."""
        from py4j.protocol import Py4JJavaError
        from pyspark.errors import PySparkException

        try:
            systems = self._class("org.apache.hadoop.fs.FileSystem")
            systems.getFileSystemClass(scheme_of(root) or "file", hadoop)
        except (Py4JJavaError, PySparkException):
            return False
        return True

    def _format(self, name: str) -> Any:
        """The FileFormat of a name. The classes of Spark's second source API name the first's."""
        found = self._object(f"{_SOURCES}.DataSource").lookupDataSource(
            name, self._js.sessionState().conf()
        )
        made = self._instance(found)
        if self._class("java.lang.Class").forName(f"{_SOURCES}.FileFormat").isInstance(made):
            return made
        return self._instance(made.fallbackFileFormat())

    def _instance(self, kind: Any) -> Any:
        gateway = cast(Any, self._spark.sparkContext)._gateway
        nothing = gateway.new_array(self._jvm.java.lang.Object, 0)
        no_types = gateway.new_array(self._jvm.java.lang.Class, 0)
        return kind.getConstructor(no_types).newInstance(nothing)

    def _schema(self, fields: list[Any]) -> Any:
        text = msgspec.json.encode({"type": "struct", "fields": fields}).decode()
        return self._class("org.apache.spark.sql.types.DataType").fromJson(text).asNullable()

    def _options(self, options: Mapping[str, str]) -> Any:
        maps = self._object("org.apache.spark.sql.catalyst.util.CaseInsensitiveMap")
        return maps.apply(scala_map(self._jvm, options))

    def _class(self, name: str) -> Any:
        return class_of(self._jvm, name)

    def _object(self, name: str) -> Any:
        return object_of(self._jvm, name)


def _spark_fields(schema: pa.Schema) -> dict[str, Any]:
    """The fields of Spark's schema, by name. The hidden `_metadata` may repeat one, and is last."""
    text = (schema.metadata or {}).get(SPARK_SCHEMA)
    if text is None:
        from pyspark.sql.pandas.types import from_arrow_schema

        text = from_arrow_schema(schema, prefer_timestamp_ntz=True).json().encode()
    return {field["name"]: field for field in reversed(msgspec.json.decode(text)["fields"])}
