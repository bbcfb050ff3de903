"""Small trees of operators for the tests of plans."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa

from epochal.connectors.contract import Positions, ReaderFactory, Source, SourceReader
from epochal.continuous.operators.contract import StoreSchema
from epochal.continuous.plan.compile import compile_plan, sources_of
from epochal.continuous.plan.logical import Node, Stateful, StreamSource, Watermarked
from epochal.continuous.plan.stages import QueryPlan
from epochal.state.rows.types import AtomicType, StructField, StructType

FIELDS: Any = {"key": pa.int64(), "at": pa.timestamp("us", "UTC")}
ROWS = pa.schema(FIELDS)
KEY = StructType((StructField("key", AtomicType("long")),))


@dataclass(frozen=True, slots=True)
class Keyed:
    """An operator with state of which only the plan is looked at."""

    name: str = "stateStoreSave"
    keys: tuple[tuple[str, ...], ...] = (("key",),)
    stores: tuple[StoreSchema, ...] = (StoreSchema("default", KEY, KEY),)
    output_schema: pa.Schema = ROWS

    def open(self, partitions: Sequence[int], state_partitions: int) -> Any:
        raise AssertionError("planning opens nothing")


@dataclass(frozen=True, slots=True)
class TimedJoin(Keyed):
    """A join on `rt between lt and lt + 2 seconds`: it may still return rows 2001 ms back."""

    name: str = "symmetricHashJoin"
    keys: tuple[tuple[str, ...], ...] = (("key",), ("key",))

    def output_watermark_ms(self, input_ms: int) -> int:
        return input_ms - 2001


@dataclass(frozen=True, slots=True)
class Timeless(Keyed):
    """An operator whose rows have no event time, as after a processing-time timer."""

    def output_watermark_ms(self, input_ms: int) -> None:
        return None


def source(number: int = 0) -> StreamSource:
    return StreamSource(number, "rate", {}, None, ROWS, f"source {number}")


def timed(number: int = 0, delay_ms: int = 1000) -> Watermarked:
    return Watermarked(source(number), "at", delay_ms)


def state(operator_id: int, *children: Node, spec: Any = None) -> Stateful:
    return Stateful(children, operator_id, spec or Keyed())


@dataclass(frozen=True)
class Readers(ReaderFactory):
    number: int

    def open(self, partitions: Positions) -> SourceReader:
        raise AssertionError("a plan opens no reader")


def planned(tree: Node, **how: Any) -> QueryPlan:
    opened: Any = [
        SimpleNamespace(readers=Readers(leaf.number), acknowledges_in_tasks=False)
        for leaf in sources_of(tree)
    ]
    return compile_plan(tree, cast("list[Source]", opened), **how)
