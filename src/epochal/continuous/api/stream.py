"""Defines what happens to the rows of a continuous query between `load` and `start`.

A `Stream` is immutable: every method returns a new one, and nothing runs until `start`. The schema
is known at every step, so an unknown column raises an error on the line that names it.

Note: rows of a `union` meet only where they are exchanged or written. An operator after the union
runs separately for each of its inputs.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from epochal.continuous.api.step_names import groups_of, steps_of
from epochal.continuous.api.stream_writer import UPDATE, StreamWriter, check_mode
from epochal.continuous.catalyst.given_schema import arrow_schema
from epochal.continuous.operators.aggregation.named import Aggregate, planned
from epochal.continuous.operators.contract import OperatorSpec, StatefulSpec
from epochal.continuous.operators.deduplication import DropDuplicatesSpec, DropRepeatsSpec
from epochal.continuous.operators.expressions.expr import Column
from epochal.continuous.operators.stateless.row_operators import (
    ArrowExpressionSpec,
    ArrowFunction,
    FilterSpec,
    MapInArrowSpec,
    MapInPandasSpec,
    PandasFunction,
    ProjectSpec,
)
from epochal.continuous.operators.windows import Window
from epochal.continuous.plan.logical import (
    Node,
    Stateful,
    Step,
    StreamSource,
    Union,
    Watermarked,
    postorder,
    preorder,
    renumber,
)
from epochal.errors import OptionError, StateSchemaError
from epochal.options import parse_duration
from epochal.state.rows.arrow_types import arrow_type, spark_type

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_PLAIN_NAME = re.compile(r"(?!(?:true|false|null)$)[a-z_]\w*", re.A | re.I)
"""SQL text that is the name of a column if there is one of that name."""


@dataclass(frozen=True, slots=True)
class Stream:
    """A stream of rows from sources, through operators, to a sink."""

    spark: SparkSession
    tree: Node

    @property
    def schema(self) -> pa.Schema:
        """The columns and their types, as Arrow has them."""
        return self.tree.schema

    def __repr__(self) -> str:
        return f"Stream({steps_of(self)})"

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        return list(self.schema.names)

    def map_in_arrow(self, function: ArrowFunction, schema: Any) -> Stream:
        """Apply a function to record batches, as PySpark's `mapInArrow`, one batch per call."""
        result = arrow_schema(schema)
        return self.then(MapInArrowSpec(function, result), result)

    def map_in_pandas(self, function: PandasFunction, schema: Any) -> Stream:
        """Apply a function to DataFrames, as PySpark's `mapInPandas`, one per call."""
        result = arrow_schema(schema)
        return self.then(MapInPandasSpec(function, result), result)

    def filter(self, condition: Any) -> Stream:
        """Keep rows for which SQL text, a PySpark column or a pyarrow expression is true."""
        if isinstance(condition, pc.Expression):
            spec = ArrowExpressionSpec((condition,), self.schema, filters=True)
            return self.then(spec, self.schema)
        resolved = self._resolve([condition])
        if not pa.types.is_boolean(resolved.schema.types[0]):
            raise OptionError(
                f"A filter must be a boolean, but {condition} is {resolved.schema.types[0]}."
            )
        return self.then(FilterSpec(resolved.columns[0]), self.schema)

    where = filter

    def select(self, *columns: Any) -> Stream:
        """Compute columns from SQL text or PySpark columns; `*` stands for all columns."""
        if not columns:
            raise OptionError("Select at least one column.")
        if all(isinstance(column, str) and _PLAIN_NAME.fullmatch(column) for column in columns):
            plain = self._plain(columns)
            if plain is not None:
                return plain
        spec = self._resolve(columns)
        return self.then(spec, spec.schema)

    def with_column(self, name: str, column: Any) -> Stream:
        """Add a column, or replace the one of that name."""
        if isinstance(column, pc.Expression):
            return self._with_arrow(name, column)
        added = self._resolve([column])
        projected = self._resolve([_quote(column) for column in self.columns])
        columns = dict(zip(self.columns, projected.columns, strict=True))
        columns[name] = added.columns[0]
        fields = {field.name: field for field in self.schema}
        fields[name] = added.schema.field(0).with_name(name)
        schema = pa.schema(list(fields.values()))
        return self.then(ProjectSpec(tuple(columns.values()), schema), schema)

    def drop(self, *names: str) -> Stream:
        """Remove columns; unknown names are ignored, as in Spark."""
        names_left = [name for name in self.columns if name not in names]
        plain = self._plain(names_left) if names_left else None
        return self.select(*map(_quote, names_left)) if plain is None else plain

    def union(self, other: Stream) -> Stream:
        """Return the rows of both streams, which must have the same columns in the same order."""
        if not self.schema.equals(other.schema):
            raise OptionError(
                f"A union needs the same columns on both sides, not ({_describe(self.schema)}) and "
                f"({_describe(other.schema)})."
            )
        shifted = renumber(
            other.tree,
            sources=sum(isinstance(node, StreamSource) for node in preorder(self.tree)),
            operators=sum(isinstance(node, Stateful) for node in preorder(self.tree)),
        )
        children = self.tree.children if isinstance(self.tree, Union) else (self.tree,)
        return replace(self, tree=Union((*children, shifted), self.schema))

    def with_watermark(self, column: str, delay: str) -> Stream:
        """Declare that event time is in `column`, and wait `delay` for late rows."""
        if self._marks() and any(
            isinstance(node, Stateful) and not isinstance(node.spec, DropRepeatsSpec)
            for node in preorder(self.tree)
        ):
            raise OptionError(
                "After a stateful operator, a stream that has a watermark already cannot get "
                "another one. Declare the watermark before the first stateful operator."
            )
        field = self.schema.field(self.known(column))
        if not pa.types.is_timestamp(field.type):
            raise OptionError(f"Event time must be a timestamp, but {column} is {field.type}.")
        wait = parse_duration(delay, "with_watermark")
        marked = Watermarked(self.tree, column, wait // timedelta(milliseconds=1))
        return replace(self, tree=marked)

    def transform_with_state(
        self,
        processor: Any,
        *,
        key: Sequence[str],
        output: Any,
        output_mode: str = "Update",
        time_mode: str = "None",
        initial_state: Any = None,
        pandas: bool = False,
    ) -> Stream:
        """Run a PySpark `StatefulProcessor`, unchanged, for every key.

        With `pandas` it takes DataFrames, as in `transformWithStateInPandas`. `initial_state` is a
        pyarrow Table or a Spark DataFrame that has the key's columns.
        """
        # PySpark takes a third of a second to import, and only processors and SQL need it.
        from epochal.continuous.operators.processor.transform_with_state import (
            TransformWithStateSpec,
        )

        names = tuple(self.known(name) for name in key)
        spec = TransformWithStateSpec.plan(
            processor,
            names,
            self.schema,
            arrow_schema(output),
            time_mode=time_mode,
            output_mode=output_mode,
            event_time=self.event_time,
            initial_state=_table(initial_state),
            pandas=pandas,
            timezone=str(self.spark.conf.get("spark.sql.session.timeZone")),
        )
        return self.stage(spec)

    def group_by(self, *columns: str, window: Window | None = None) -> GroupedStream:
        """Group rows by columns and, optionally, by a window over event time."""
        names = tuple(self.known(name) for name in columns)
        if window is not None:
            self.known(window.column)
        return GroupedStream(self, names, window)

    def drop_duplicates(self, columns: Sequence[str] | None = None) -> Stream:
        """Keep the first row of each key.

        With event time among the columns, a key is forgotten when the watermark passes it; without,
        keys are kept forever.
        """
        return self._deduplicated(columns, within_watermark=False)

    def drop_duplicates_within_watermark(self, columns: Sequence[str] | None = None) -> Stream:
        """Keep the first row of each key; forget the key after the watermark's delay."""
        if self.event_time is None:
            raise OptionError("drop_duplicates_within_watermark needs with_watermark before it.")
        return self._deduplicated(columns, within_watermark=True)

    @property
    def write_stream(self) -> StreamWriter:
        """Define where the rows go."""
        return StreamWriter(self)

    def then(self, spec: OperatorSpec, schema: pa.Schema) -> Stream:
        """Append a stateless operator."""
        return replace(self, tree=Step(self.tree, spec, schema))

    def stage(self, spec: StatefulSpec) -> Stream:
        """Exchange rows by key, and append a stateful operator."""
        # Spark numbers operators from the sink. These are numbered from the sources, so that a
        # query can be written down step by step, and checkpoints depend on it.
        number = sum(isinstance(node, Stateful) for node in preorder(self.tree))
        return replace(self, tree=Stateful((self.tree,), number, spec))

    def _plain(self, names: Sequence[str]) -> Stream | None:
        """Return these columns as they are, without Spark; None if Spark must say what they are.

        It must if a name is unknown, not unique in any case, or of a type that Spark changes.
        """
        counts = Counter(column.lower() for column in self.columns)
        if not set(names) <= set(self.columns) or len(set(names)) < len(names):
            return None
        fields = [self.schema.field(name) for name in names]
        if any(counts[field.name.lower()] > 1 or not _is_canonical(field.type) for field in fields):
            return None
        columns = tuple(Column(self.columns.index(name)) for name in names)
        return self.then(ProjectSpec(columns, pa.schema(fields)), pa.schema(fields))

    def _resolve(self, columns: Sequence[Any]) -> ProjectSpec:
        from epochal.continuous.catalyst.expression_reader import resolve

        return resolve(self.spark, self.schema, columns)

    def _with_arrow(self, name: str, column: pc.Expression) -> Stream:
        names = list(dict.fromkeys([*self.columns, name]))
        expressions = tuple(
            column if own_name == name else pc.field(own_name) for own_name in names
        )
        empty = ArrowExpressionSpec(expressions, pa.schema([(name, pa.null()) for name in names]))
        schema = empty.open().run(self.schema.empty_table()).schema
        return self.then(ArrowExpressionSpec(expressions, schema), schema)

    def _deduplicated(self, columns: Sequence[str] | None, *, within_watermark: bool) -> Stream:
        names = tuple(self.known(name) for name in (columns or self.columns))
        marks = self._marks()
        delay_ms = marks[-1].delay_ms if marks else 0
        event_time = self.event_time
        return self.stage(
            DropDuplicatesSpec(names, self.schema, event_time, delay_ms, within_watermark)
        )

    @property
    def event_time(self) -> str | None:
        """The column with event time, if there is a watermark."""
        columns = [mark.column for mark in self._marks() if mark.column in self.schema.names]
        return columns[0] if columns else None

    def _marks(self) -> list[Watermarked]:
        """The watermarks, in the order in which they were declared."""
        return [node for node in postorder(self.tree) if isinstance(node, Watermarked)]

    def known(self, column: str) -> str:
        """Return the column's name; OptionError with the known columns if it does not exist."""
        if column not in self.schema.names:
            raise OptionError(f"There is no column {column!r}; the columns are {self.columns}.")
        return column


@dataclass(frozen=True, slots=True)
class GroupedStream:
    """Rows grouped by key; `agg` defines what to compute per group."""

    stream: Stream
    keys: tuple[str, ...]
    window: Window | None = None

    def __repr__(self) -> str:
        return f"GroupedStream({steps_of(self.stream)} by {groups_of(self.keys, self.window)})"

    def agg(self, *, output_mode: str = UPDATE, **aggregates: str | tuple[str, str]) -> Stream:
        """Return one row per group: whenever it changes (update), or when its window closes
        (append).

        Each keyword names a column of the result: `rows="count"`, `total=("sum", "amount")`.
        """
        before, spec = planned(
            keys=self.keys,
            window=self.window,
            aggregates=[
                Aggregate(asked, None, name) if isinstance(asked, str) else Aggregate(*asked, name)
                for name, asked in aggregates.items()
            ],
            input_schema=self.stream.schema,
            event_time=self.stream.event_time,
            output_mode=check_mode(output_mode),
        )
        stream = self.stream
        if before is not None:
            stream = stream.then(before, spec.input_schema)
        return stream.stage(spec)

    def count(self, output_mode: str = UPDATE) -> Stream:
        """Return the number of rows per group, in the column `count`."""
        return self.agg(output_mode=output_mode, count="count")


def _is_canonical(kind: pa.DataType) -> bool:
    """Whether a type stays the same on its way through Spark."""
    try:
        return arrow_type(spark_type(kind)).equals(kind)
    except StateSchemaError:
        return False


def _quote(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _describe(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)


def _table(rows: Any) -> pa.Table | None:
    if rows is None or isinstance(rows, pa.Table):
        return rows
    from epochal.continuous.catalyst.spark_objects import collected

    return collected(rows)
