"""Rows in and out of a processor: PySpark's Row for `transformWithState`, pandas for `…InPandas`.

Each turn is treated like a batch in PySpark's worker: group by key, pass all columns, match the
results by name.

Note: some details look odd but reproduce PySpark. In a Row, a struct is a dict and a timestamp has
a zone. An int column that contains a null reaches pandas as floats, even in the key. A missing
output column is null for rows and a KeyError for pandas.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
from pyspark.errors import PySparkValueError

from epochal.continuous.operators.cells import Array, holds_floats, key_sorter, keys_of
from epochal.continuous.operators.contract import Row
from epochal.continuous.operators.processor.state_values import row_class
from epochal.record_batches import batch_of, batch_of_dicts

if TYPE_CHECKING:
    import pandas as pd

Group: TypeAlias = tuple[Row, Any, Callable[[], Iterator[Any]]]
"""A key in the form of the store, the same key in the processor's form, and its rows."""


class RowApi:
    """Passes rows as PySpark's Row. `groups` are in Spark's order.

    Of the initial state, each item of a group's rows is one call of `handleInitialState`.
    """

    def __init__(self, key: Sequence[str], schema: pa.Schema, output: pa.Schema) -> None:
        self._key_columns = [schema.names.index(name) for name in key]
        types = [schema.field(index).type for index in self._key_columns]
        self._row = row_class(schema.names)
        self._ordered = key_sorter(any(holds_floats(kind) for kind in types))
        self._as_stored = all(_same_in_store(kind) for kind in types)
        self._output = output
        self._names = list(output.names)
        self._struct = pa.struct(list(output))
        self._flat = not any(pa.types.is_nested(field.type) for field in output)

    def groups(self, batch: pa.RecordBatch) -> Iterable[Group]:
        new, row_type = tuple.__new__, self._row
        columns = [column.to_pylist() for column in batch.columns]
        outer = list(zip(*(columns[index] for index in self._key_columns), strict=True))
        keys = outer if self._as_stored else keys_of(batch, self._key_columns)
        own_form = dict(zip(keys, outer, strict=True)) if not self._as_stored else None
        groups: dict[Row, list[Any]] = {}
        for key, values in zip(keys, zip(*columns, strict=True), strict=True):
            group = groups.get(key)
            if group is None:
                groups[key] = [new(row_type, values)]
            else:
                group.append(new(row_type, values))
        for key in self._ordered(groups):
            yield key, own_form[key] if own_form is not None else key, groups[key].__iter__

    def output(self, results: Sequence[Any]) -> Iterable[pa.RecordBatch]:
        if not results:
            return ()
        if self._flat and self._in_order(results):
            # A Row is a tuple, and an array of tuples is made in a third of the time of columns.
            structs: Array = pa.array(results, self._struct)
            return (pa.RecordBatch.from_struct_array(structs),)
        named = [row.asDict(True) for row in results]
        return (batch_of_dicts(named, self._output),)

    def _in_order(self, results: Sequence[Any]) -> bool:
        """Whether all rows have exactly the output's columns, in its order."""
        listed, classed = self._names, tuple(self._names)
        for row in results:
            names = getattr(row, "__fields__", None)
            if (names != listed and names != classed) or len(row) != len(listed):
                return False
        return True


class PandasApi:
    """Passes rows as pandas DataFrames."""

    def __init__(self, key: Sequence[str], output: pa.Schema, timezone: str) -> None:
        self._key = tuple(key)
        self._output = output
        self._timezone = timezone

    def groups(self, batch: pa.RecordBatch) -> Iterable[Group]:
        import pandas as pd

        names = list(batch.schema.names)
        frame = pd.concat([self._series(batch, index) for index in range(len(names))], axis=1)
        rows = list(frame.itertuples(index=False, name=None))
        indexes = [names.index(name) for name in self._key]
        stored = keys_of(batch, indexes)
        rows_of_keys: dict[Row, list[int]] = {}
        for number, key in enumerate(stored):
            rows_of_keys.setdefault(key, []).append(number)
        floats = any(holds_floats(batch.schema.field(index).type) for index in indexes)
        for key in key_sorter(floats)(rows_of_keys):
            numbers = rows_of_keys[key]
            first = rows[numbers[0]]
            chosen = [rows[number] for number in numbers]
            yield key, tuple(first[index] for index in indexes), _frames(chosen, names)

    def output(self, results: Sequence[Any]) -> Iterable[pa.RecordBatch]:
        import pandas as pd

        for frame in results:
            if not isinstance(frame, pd.DataFrame):
                raise PySparkValueError(
                    "Invalid return type. Please make sure that the UDF returns a "
                    "pandas.DataFrame when the specified return type is StructType."
                )
            by_name = any(isinstance(column, str) for column in frame.columns)
            arrays = []
            for index, field in enumerate(self._output):
                if len(frame) == 0 and len(frame.columns) == 0:
                    arrays.append(pa.array([], field.type))
                    continue
                series = frame[field.name] if by_name else frame[frame.columns[index]]
                arrays.append(self._column(series, field.type))
            batch = batch_of(arrays, self._output, len(frame))
            if batch.num_rows:
                yield batch

    def _series(self, batch: pa.RecordBatch, index: int) -> pd.Series:
        column: Array = batch.column(index)
        if pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        series = column.to_pandas(date_as_object=True)
        if pa.types.is_timestamp(column.type) and column.type.tz:
            series = series.dt.tz_convert(self._timezone).dt.tz_localize(None)
        return series.rename(batch.schema.field(index).name)

    def _column(self, series: pd.Series, kind: pa.DataType) -> Array:
        if pa.types.is_timestamp(kind) and series.dtype.kind == "M":
            if kind.tz and getattr(series.dtype, "tz", None) is None:
                series = series.dt.tz_localize(self._timezone)
            elif not kind.tz and getattr(series.dtype, "tz", None) is not None:
                series = series.dt.tz_convert(self._timezone).dt.tz_localize(None)
        try:
            return pa.Array.from_pandas(series, type=kind, safe=False)
        except (pa.ArrowTypeError, pa.ArrowInvalid):
            # As in Spark: convert by the type of the values first, then cast.
            return pa.Array.from_pandas(series).cast(kind, safe=False)


def _frames(rows: list[tuple[Any, ...]], names: list[str]) -> Callable[[], Iterator[Any]]:
    def frames() -> Iterator[Any]:
        import pandas as pd

        yield pd.DataFrame(rows, columns=names)

    return frames


def _same_in_store(kind: pa.DataType) -> bool:
    """Whether a store holds keys of this type in the form in which the processor receives them."""
    types = pa.types
    return not (types.is_temporal(kind) or types.is_floating(kind) or types.is_nested(kind))
