"""Plans the schema files and operator metadata that belong to state which an edit has rewritten.

A store without column families has one schema file, in its partition 0, which is replaced. A store
with families has a log: a new file, which the operator metadata of the new batch names.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import replace

from epochal.checkpoint.layout import (
    operator_metadata_log_path,
    state_schema_log_path,
    state_schema_path,
)
from epochal.checkpoint.operator_metadata import OPERATOR_FORMAT
from epochal.errors import EditError
from epochal.state.files.schema_file import FamilySchema, encode_schema_file
from epochal.tools.edit.edit_plan import Change
from epochal.tools.edit_state.edit_state import EditBase
from epochal.tools.read_state.read_target import StateBatch, StoreTarget

WHY = "the new schema"


def new_schema(
    base: EditBase, batch: StateBatch, operator: int, schema: FamilySchema, target: StoreTarget
) -> Iterator[Change]:
    """Record the new schema of a store, or of one of its column families."""
    tree, store = base.surveyed.tree, target.store_name
    if target.family is None:
        yield tree.write(state_schema_path(operator, store), encode_schema_file([schema]), WHY)
        return
    families = {**batch.schemas(operator, store), target.family: schema}
    yield from new_families(base, batch, operator, store, list(families.values()))


def new_families(
    base: EditBase, batch: StateBatch, operator: int, store: str, families: list[FamilySchema]
) -> Iterator[Change]:
    """Record the new schemas of all column families of a store."""
    tree, batch_id = base.surveyed.tree, base.batch_id + 1
    found = batch.operator(operator)
    if found is None:
        raise EditError(base.url, f"operator {operator} has no metadata that names its schemas.")
    name = f"{batch_id}_{uuid.uuid4()}"
    path = f"{state_schema_log_path(operator, store)}/{name}"
    yield tree.write(path, encode_schema_file(families, version=3), WHY)
    # Spark reads the path as it stands here, so the new file is named like the one before it.
    stores = tuple(
        replace(
            each,
            schema_file_paths=(f"{each.schema_file_paths[-1].rpartition('/')[0]}/{name}",),
        )
        if each.name == store
        else each
        for each in found.stores
    )
    data = OPERATOR_FORMAT.serialize(replace(found, stores=stores))
    yield tree.write(f"{operator_metadata_log_path(operator)}/{batch_id}", data, WHY)
