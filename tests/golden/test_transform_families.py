"""Our form of transformWithState's column families against what Spark wrote."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from tests.golden.cases_python import HOUR_MS, _processor
from tests.golden.library import Golden, unpack

from epochal.checkpoint.directory import Checkpoint
from epochal.checkpoint.layout import state_schema_log_path
from epochal.checkpoint.operator_metadata import read_operator
from epochal.continuous.operators.processor.transform_with_state import TransformWithStateSpec
from epochal.state.files.schema_file import parse_schema_file

FIELDS: list[tuple[str, pa.DataType]] = [("k", pa.string()), ("v", pa.int64())]
INPUT = pa.schema(FIELDS)


def spec(ttl_ms: int | None, mode: str) -> TransformWithStateSpec:
    return TransformWithStateSpec.plan(
        _processor(ttl_ms=ttl_ms, timers=True),
        ["k"],
        INPUT,
        pa.schema([("k", pa.string())]),
        time_mode=mode,
        pandas=True,
        spark_layout=True,
    )


CASES = {
    "transform": spec(None, "EventTime"),
    "transform_ttl": spec(24 * HOUR_MS, "ProcessingTime"),
}


@pytest.fixture(params=sorted(CASES))
def case(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_the_schemas_and_the_metadata_are_sparks(case: str, tmp_path: Path) -> None:
    checkpoint = Checkpoint(str(unpack(Golden("4.3.0", case), tmp_path).checkpoint))
    metadata = read_operator(checkpoint.files, 0)
    assert metadata is not None
    path = metadata.stores[0].schema_file_paths[0].rpartition("/")[2]
    stored = checkpoint.files.read(f"{state_schema_log_path(0, 'default')}/{path}")
    [store] = CASES[case].stores
    ours = sorted(
        (schema for family in store.families for schema in family.schemas),
        key=lambda schema: schema.name,
    )
    assert ours == parse_schema_file(stored)
    assert CASES[case].name == metadata.operator_name
    mine, theirs = json.loads(store.properties_json), json.loads(metadata.properties_json)
    for each in (mine, theirs):
        each["stateVariables"].sort(key=lambda variable: variable["stateName"])
    assert mine == theirs
