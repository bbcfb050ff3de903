"""What of a query may change between runs on one checkpoint, and what may not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from epochal.checkpoint.layout import PLAN
from epochal.checkpoint.operator_metadata import read_operator
from epochal.continuous.operators.contract import StoreSchema
from epochal.continuous.plan.pinned_plan import (
    OperatorShape,
    check_empty,
    decode_shape,
    encode_shape,
    settle_id,
    settle_shape,
    shape_of,
)
from epochal.continuous.plan.stages import QueryPlan, StagePlan, Target
from epochal.errors import (
    CheckpointError,
    MalformedFileError,
    PlanChangedError,
    StateSchemaMismatchError,
    UnsupportedVersionError,
)
from epochal.files import Files, open_files
from epochal.state.rows.types import StructType, parse_schema

SCHEMA = pa.schema([("user", pa.string())])


def struct(name: str, type_name: str) -> StructType:
    field = f'{{"name":"{name}","type":"{type_name}","nullable":true,"metadata":{{}}}}'
    return parse_schema(f'{{"type":"struct","fields":[{field}]}}')


TEXT, NUMBER = struct("user", "string"), struct("n", "long")


@dataclass(frozen=True)
class Keyed:
    """A stateful operator that is only planned."""

    keys: tuple[tuple[str, ...], ...] = (("user",),)
    name: str = "stateStoreSave"
    stores: tuple[StoreSchema, ...] = (StoreSchema("default", TEXT, NUMBER),)
    output_schema: pa.Schema = SCHEMA

    def open(self, partitions: Sequence[int], state_partitions: int) -> Any:
        raise AssertionError("planning opens nothing")


class NoWriters:
    def open(self, context: Any) -> Any:
        raise AssertionError("planning opens nothing")


def plan_of(*stateful: Keyed) -> QueryPlan:
    stages = tuple(
        StagePlan(i, each, (SCHEMA,), (), Target(i + 1)) for i, each in enumerate(stateful)
    )
    return QueryPlan((), (), stages, NoWriters(), SCHEMA, state_partitions=3)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return open_files(str(tmp_path / "checkpoint"))


def test_the_first_start_writes_what_sparks_reader_needs(files: Files) -> None:
    settle_shape(files, plan_of(Keyed()))
    operator = read_operator(files, 0)
    assert operator is not None
    assert (operator.operator_name, operator.stores[0].num_partitions) == ("stateStoreSave", 3)
    assert files.info("state/0/0/_metadata/schema") is not None
    assert decode_shape(files.read(".epochal/plan"), "plan") == shape_of(plan_of(Keyed()))


@pytest.mark.parametrize(
    "changed",
    [
        plan_of(),
        plan_of(Keyed(), Keyed()),
        plan_of(Keyed(keys=(("device",),))),
        plan_of(Keyed(name="dedupe")),
        plan_of(Keyed(stores=(StoreSchema("counts", TEXT, NUMBER),))),
    ],
    ids=["operator gone", "operator added", "other key", "other operator", "other store"],
)
def test_a_plan_with_other_state_is_refused_with_both_worded(
    files: Files, changed: QueryPlan
) -> None:
    settle_shape(files, plan_of(Keyed()))
    with pytest.raises(PlanChangedError) as refused:
        settle_shape(files, changed)
    assert "stateStoreSave by (user) in default" in str(refused.value)
    assert "checkpointLocation of its own" in str(refused.value)


def test_a_store_of_another_type_is_refused(files: Files) -> None:
    settle_shape(files, plan_of(Keyed()))
    with pytest.raises(StateSchemaMismatchError):
        settle_shape(files, plan_of(Keyed(stores=(StoreSchema("default", NUMBER, NUMBER),))))


def test_state_that_spark_made_is_held_to_its_operator_metadata(files: Files) -> None:
    settle_shape(files, plan_of(Keyed()))
    files.delete(".epochal/plan")
    with pytest.raises(PlanChangedError):
        settle_shape(files, plan_of(Keyed(name="dedupe")))
    settle_shape(files, plan_of(Keyed()))


def test_a_plan_file_of_a_newer_release_is_refused() -> None:
    with pytest.raises(UnsupportedVersionError):
        decode_shape(encode_shape(()).replace(b"v1", b"v2"), "plan")


@pytest.mark.parametrize("data", [b"", b"v1\n[]", b'v1\n{"operators":[1]}', b'v1\n{"operators":1}'])
def test_a_broken_plan_file_is_named(data: bytes) -> None:
    with pytest.raises(MalformedFileError, match="plan"):
        decode_shape(data, "plan")


def test_the_id_stays_and_is_not_made_up_for_a_checkpoint_with_a_history(files: Files) -> None:
    first = settle_id(files, has_history=False)
    assert settle_id(files, has_history=True) == first
    files.delete("metadata")
    with pytest.raises(CheckpointError, match="STREAMING_CHECKPOINT_MISSING_METADATA_FILE"):
        settle_id(files, has_history=True)


def test_state_of_another_query_is_not_taken_for_a_new_ones(files: Files) -> None:
    check_empty(files)
    files.create("state/0/0/1.delta", b"")
    with pytest.raises(CheckpointError, match="STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY"):
        check_empty(files)
    settle_shape(files, plan_of(Keyed()))
    check_empty(files)


def test_operators_are_pinned_by_id_and_with_the_keys_of_all_inputs(files: Files) -> None:
    join = Keyed(name="symmetricHashJoin", keys=(("user",), ("device", "day")))
    plan = plan_of(Keyed(), join)
    turned = replace(
        plan,
        stages=tuple(
            replace(stage, operator_id=1 - number) for number, stage in enumerate(plan.stages)
        ),
    )
    settle_shape(files, turned)
    stored = decode_shape(files.read(PLAN), PLAN)
    assert [(each.operator_id, each.keys) for each in stored] == [
        (0, (("user",), ("device", "day"))),
        (1, (("user",),)),
    ]
    settle_shape(files, turned)
    with pytest.raises(PlanChangedError):
        settle_shape(files, plan)


def test_a_plan_file_of_an_earlier_release_can_be_read() -> None:
    old = b'v1\n{"operators":[{"operatorId":0,"operatorName":"dedupe","key":["a"],"stores":["s"]}]}'
    assert decode_shape(old, PLAN) == (OperatorShape(0, "dedupe", (("a",),), ("s",)),)


def test_spark_learns_how_many_columns_of_a_key_prefix_scans_use(files: Files) -> None:
    spec = Keyed(stores=(StoreSchema("default", TEXT, NUMBER, prefix_columns=1),))
    settle_shape(files, plan_of(spec))
    operator = read_operator(files, 0)
    assert operator is not None
    assert operator.stores[0].num_cols_prefix_key == 1
