"""Joins two streams: inner, outer and semi joins with Spark's state.

Each row is stored, and joined with all rows of the other side that are stored already. So every
pair is emitted exactly once, no matter in which order the rows of an epoch arrive. `join_bounds`
says when a stored row cannot match any more. `expire` removes such rows, and an outer join emits
those that never matched, with nulls for the other side.

Semantics and order of rows in state are those of a Spark batch, which processes all left rows
before the right ones (in a semi join the other way round):
- A row that fails a condition on its own side alone is not stored. An outer join emits it at once.
- A right row that expires in its own epoch is joined, but not stored, unless an outer join has to
  emit it when it expires. In a semi join it only matches left rows of earlier epochs.
- A semi join removes a left row when it matches.

Note: null is a key like any other. Where nulls must not match, Spark's optimizer filters them
before the join. In a full outer join it does not, and there they match each other as in Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias
from typing import Literal as OneOf

import pyarrow as pa
import pyarrow.compute as pc

from epochal.continuous.operators.cells import (
    Array,
    arrow_column,
    cells,
    drop_late,
    event_times,
    keys_of,
)
from epochal.continuous.operators.containers import trim
from epochal.continuous.operators.contract import Moment, Row, StateChanges, StoreSchema
from epochal.continuous.operators.expressions.evaluate import evaluate
from epochal.continuous.operators.expressions.expr import Expr, arrow, as_column, columns_in
from epochal.continuous.operators.joins.join_bounds import (
    Sides,
    split_condition,
    value_watermark_ms,
)
from epochal.continuous.operators.joins.join_state import (
    Pairs,
    SideState,
    TimeOf,
    counts_store,
    pairs_of,
    remove_matched,
    time_at,
    values_store,
)
from epochal.record_batches import batch_of
from epochal.state.rows.arrow_types import spark_type
from epochal.state.rows.types import AtomicType, StructField, StructType

Kind: TypeAlias = OneOf["inner", "left_outer", "right_outer", "full_outer", "left_semi"]

LEFT, RIGHT = 0, 1
SIDES = ("left", "right")

_OUTER_SIDES: dict[str, tuple[int, ...]] = {
    "left_outer": (LEFT,),
    "right_outer": (RIGHT,),
    "full_outer": (LEFT, RIGHT),
}
_LONG = AtomicType("long")


@dataclass(frozen=True, slots=True)
class JoinInput:
    """One input of a stream-stream join."""

    schema: pa.Schema
    columns: int
    """The first `columns` columns are stored and emitted. Those after them are computed keys."""
    key: tuple[str, ...]
    event_time: str | None
    """The column that has a watermark, among the first `columns`: a timestamp or a window."""
    delay_ms: int = 0

    @property
    def own_schema(self) -> pa.Schema:
        return pa.schema([self.schema.field(index) for index in range(self.columns)])

    @property
    def time_index(self) -> int | None:
        return None if self.event_time is None else self.schema.get_field_index(self.event_time)


@dataclass(frozen=True, slots=True)
class StreamJoinSpec:
    """The plan of a join of two streams on equal keys."""

    kind: Kind
    left: JoinInput
    right: JoinInput
    condition: Expr | None
    """What else must hold for a pair, without the equalities of the keys. It refers to the own
    columns of the left side, then to those of the right side."""
    output_schema: pa.Schema
    """The own columns of the left side, then (except in a semi join) those of the right side."""
    name: ClassVar[str] = "symmetricHashJoin"

    @property
    def keys(self) -> tuple[tuple[str, ...], ...]:
        return (self.left.key, self.right.key)

    @property
    def stores(self) -> tuple[StoreSchema, ...]:
        schemas = []
        for side, stream in zip(SIDES, (self.left, self.right), strict=True):
            key = tuple(
                StructField(f"field{number}", spark_type(stream.schema.field(name).type))
                for number, name in enumerate(stream.key)
            )
            own = tuple(
                StructField(field.name, spark_type(field.type)) for field in stream.own_schema
            )
            count = StructType((StructField("value", _LONG),))
            indexed = StructType((*key, StructField("index", _LONG)))
            value = StructType((*own, StructField("matched", AtomicType("boolean"))))
            schemas.append(StoreSchema(counts_store(side), StructType(key), count))
            schemas.append(StoreSchema(values_store(side), indexed, value))
        return tuple(schemas)

    @property
    def key_time(self) -> int | None:
        """The position in the key of event time that has a watermark on either side."""
        for stream in (self.left, self.right):
            if stream.event_time in stream.key:
                return stream.key.index(stream.event_time)
        return None

    def state_watermark_ms(self, side: int, watermark_ms: int) -> int | None:
        """The time up to which stored rows of a side expire; None if they never do.

        It applies to the event time in the key if there is one (`key_time`), otherwise to the event
        time of the row.
        """
        if self.key_time is not None:
            return watermark_ms
        left, right = self.left.time_index, self.right.time_index
        if (left, right)[side] is None:
            return None
        shifted = None if right is None else right + self.left.columns
        sides = Sides(self.left.columns, (left, shifted))
        return value_watermark_ms(self.condition, side, sides, watermark_ms)

    def output_watermark_ms(self, input_ms: int) -> int:
        """The watermark of the join's output: rows that wait in state may be emitted later."""
        bounds = [self.state_watermark_ms(side, input_ms) for side in (LEFT, RIGHT)]
        return min([input_ms, *(bound for bound in bounds if bound is not None)])

    def open(self, partitions: Sequence[int], state_partitions: int) -> StreamJoin:
        return StreamJoin(self, partitions)


class StreamJoin:
    """The stored rows of both sides in some partitions."""

    def __init__(self, spec: StreamJoinSpec, partitions: Sequence[int]) -> None:
        self._spec = spec
        self._semi = spec.kind == "left_semi"
        *self._filters, self._condition = split_condition(spec.condition, spec.left.columns)
        """What must hold of a row of the left side, of one of the right side, and of a pair."""
        self._used = frozenset() if self._condition is None else columns_in(self._condition)
        inputs = (spec.left, spec.right)
        self._key_columns = [
            [stream.schema.get_field_index(name) for name in stream.key] for stream in inputs
        ]
        self._own_schemas = [stream.own_schema for stream in inputs]
        self._time_columns = [stream.time_index for stream in inputs]
        self._outer_sides = _OUTER_SIDES.get(spec.kind, ())
        self._candidate_types = [kind for schema in self._own_schemas for kind in schema.types]
        times = [self._time_of(side) for side in (LEFT, RIGHT)]
        self._time_of_side = times
        self._partitions = {
            number: (SideState(SIDES[LEFT], times[LEFT]), SideState(SIDES[RIGHT], times[RIGHT]))
            for number in partitions
        }
        self.late_rows = 0

    def load(self, partition: int, store: str, rows: Iterable[tuple[Row, Row]]) -> None:
        for state in self._partitions[partition]:
            state.load(store, rows)

    def process(
        self, partition: int, batch: pa.RecordBatch, at: Moment, side: int = 0
    ) -> Iterable[pa.RecordBatch]:
        time, condition = self._time_columns[side], self._filters[side]
        if time is not None:
            batch, late_rows = drop_late(batch, event_times(batch.column(time)), at.late_ms)
            self.late_rows += late_rows
        output: list[pa.RecordBatch] = []
        if condition is not None and batch.num_rows:
            met = as_column(evaluate(condition, batch), batch.num_rows).fill_null(False)
            if side in self._outer_sides and met.false_count:
                rest = batch.filter(pc.invert(met))
                output.append(self._with_nulls(side, self._own(rest, side), rest.num_rows))
            batch = batch.filter(met)
        if batch.num_rows:
            states = self._partitions[partition]
            for state in states:
                trim(state.keys)
            keys = keys_of(batch, self._key_columns[side])
            if self._semi:
                output += self._semi_join(states, side, batch, keys, at)
            else:
                output += self._join(states, side, batch, keys)
        return output

    def due_ms(self) -> int | None:
        return None

    def expire(self, at: Moment) -> Iterable[pa.RecordBatch]:
        output: list[pa.RecordBatch] = []
        if at.watermark_ms < 0:
            return output
        for side in (LEFT, RIGHT):
            until_ms = self._spec.state_watermark_ms(side, at.watermark_ms)
            if until_ms is None:
                continue
            emits = side in self._outer_sides
            for states in self._partitions.values():
                evicted = states[side].expire(
                    until_ms * 1000, forgets_new=side == RIGHT, keeps_unmatched=emits
                )
                unmatched = [row for row in evicted if not row[-1]] if emits else []
                if unmatched:
                    output.append(
                        self._with_nulls(side, self._columns_of(side, unmatched), len(unmatched))
                    )
        return output

    def cut(self, epoch: int) -> list[StateChanges]:
        return [
            change
            for number, states in self._partitions.items()
            for state in states
            for change in state.changes(number, epoch)
        ]

    def _join(
        self, states: Sequence[SideState], side: int, batch: pa.RecordBatch, keys: list[Row]
    ) -> list[pa.RecordBatch]:
        # Match first, then store: of two rows that match, the later one finds the earlier one, and
        # never the other way round. Here rows of `other` only change, so all indexes stay right.
        mine, other = states[side], states[1 - side]
        pairs = self._matching(batch, pairs_of(keys, other), side)
        matched = [False] * batch.num_rows
        for number, rows, index in pairs.places():
            matched[number] = True
            if not rows.rows[index][-1]:
                rows.mark_matched(index)
                other.touch(keys[number], rows)
        mine.append(keys, self._rows(batch, side, matched))
        if not pairs.stored:
            return []
        every = frozenset(range(len(self._candidate_types)))
        candidates = self._candidates(batch, pairs, side, every)
        return [self._emit(candidates.columns, candidates.num_rows)]

    def _semi_join(
        self,
        states: Sequence[SideState],
        side: int,
        batch: pa.RecordBatch,
        keys: list[Row],
        at: Moment,
    ) -> list[pa.RecordBatch]:
        own = self._own(batch, side)
        if side == LEFT:
            pairs = self._matching(batch, pairs_of(keys, states[RIGHT]), side)
            matches: set[int] = set()
            for number, rows, index in pairs.places():
                if number not in matches:  # only the first match of each left row counts
                    matches.add(number)
                    rows.mark_matched(index)
                    states[RIGHT].touch(keys[number], rows)
            rest = [number for number in range(batch.num_rows) if number not in matches]
            unmatched = [False] * len(rest)
            stored = self._rows(batch.take(rest), side, unmatched) if rest else ()
            states[LEFT].append([keys[number] for number in rest], stored)
            taken = pa.array(sorted(matches), pa.int64())
            shown = [column.take(taken) for column in own]
            return [self._emit(shown, len(matches))] if matches else []
        fleeting = self._expiring(batch, keys, at)
        pairs = self._matching(batch, pairs_of(keys, states[LEFT]), side)
        matched, removed = remove_matched(states[LEFT], keys, pairs, fleeting)
        stored = list(self._rows(batch, side, matched))
        lasting = [not expires for expires in fleeting]
        states[RIGHT].append(_where(keys, lasting), _where(stored, lasting))
        return [self._emit(self._columns_of(LEFT, removed), len(removed))] if removed else []

    def _matching(self, batch: pa.RecordBatch, pairs: Pairs, side: int) -> Pairs:
        """The pairs that meet the condition."""
        condition = self._condition
        if condition is None or not pairs.stored:
            return pairs
        candidates = self._candidates(batch, pairs, side, self._used)
        met = as_column(evaluate(condition, candidates), len(pairs.stored)).fill_null(False)
        return pairs.filtered(met.to_numpy(zero_copy_only=False))

    def _candidates(
        self, batch: pa.RecordBatch, pairs: Pairs, side: int, wanted: frozenset[int]
    ) -> pa.RecordBatch:
        """The pairs as rows: columns of the left side, then of the right. Others are null."""
        columns: list[Array] = []
        count = len(pairs.stored)
        taken: Array = pa.array(pairs.new)
        for number, kind in enumerate(self._candidate_types):
            of_right = number >= len(self._own_schemas[LEFT])
            index = number - len(self._own_schemas[LEFT]) if of_right else number
            if number not in wanted:
                columns.append(arrow.nulls(count, kind))
            elif of_right == (side == RIGHT):
                columns.append(_as_type(batch.column(index).take(taken), kind))
            else:
                columns.append(arrow_column([row[index] for row in pairs.stored], kind))
        names = [str(number) for number in range(len(columns))]
        return batch_of(columns, names, count)

    def _rows(self, batch: pa.RecordBatch, side: int, matched: list[bool]) -> Iterable[Row]:
        """The rows of a batch as they are stored."""
        columns = [cells(batch.column(index)) for index in range(len(self._own_schemas[side]))]
        return zip(*columns, matched, strict=True)

    def _expiring(self, batch: pa.RecordBatch, keys: list[Row], at: Moment) -> list[bool]:
        """For each right row, whether it expires in this epoch."""
        time_of = self._time_of_side[RIGHT]
        until_ms = self._spec.state_watermark_ms(RIGHT, at.watermark_ms)
        if time_of is None or until_ms is None or at.watermark_ms < 0:
            return [False] * batch.num_rows
        times = [
            time_of(key, row)
            for key, row in zip(
                keys, self._rows(batch, RIGHT, [False] * batch.num_rows), strict=True
            )
        ]
        return [time is not None and time <= until_ms * 1000 for time in times]

    def _time_of(self, side: int) -> TimeOf | None:
        """How to find the time at which a row of a side expires."""
        spec = self._spec
        stream = (spec.left, spec.right)[side]
        if spec.key_time is not None:
            place = spec.key_time
            window = pa.types.is_struct(stream.schema.field(stream.key[place]).type)
            return time_at(place, in_key=True, window=window)
        if stream.time_index is None or spec.state_watermark_ms(side, 0) is None:
            return None
        window = pa.types.is_struct(stream.schema.field(stream.time_index).type)
        return time_at(stream.time_index, in_key=False, window=window)

    def _own(self, batch: pa.RecordBatch, side: int) -> list[Array]:
        return [batch.column(index) for index in range(len(self._own_schemas[side]))]

    def _columns_of(self, side: int, rows: Sequence[Row]) -> list[Array]:
        return [
            arrow_column([row[index] for row in rows], kind)
            for index, kind in enumerate(self._own_schemas[side].types)
        ]

    def _with_nulls(self, side: int, columns: list[Array], rows: int) -> pa.RecordBatch:
        """Rows of a side that have no match."""
        nulls = [arrow.nulls(rows, kind) for kind in self._own_schemas[1 - side].types]
        return self._emit([*columns, *nulls] if side == LEFT else [*nulls, *columns], rows)

    def _emit(self, columns: Sequence[Array], rows: int) -> pa.RecordBatch:
        schema = self._spec.output_schema
        fitting = [
            _as_type(column, kind) for column, kind in zip(columns, schema.types, strict=True)
        ]
        return batch_of(fitting, schema, rows)


def _as_type(column: Array, kind: pa.DataType) -> Array:
    return column if column.type == kind else column.cast(kind)


def _where(values: list[Any], wanted: list[bool]) -> list[Any]:
    return [value for value, is_wanted in zip(values, wanted, strict=True) if is_wanted]
