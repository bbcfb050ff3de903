"""Decides which files to write to put or delete single keys.

Keys and values are given in the JSON form that `epochal state read` shows. They are encoded as
Spark would encode them, and written to the partition that Spark's hash of the key selects. In the
wrong partition a key would silently exist twice. The stores of a join depend on each other, so they
cannot be edited one by one.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from epochal.checkpoint.directory import Checkpoint
from epochal.checkpoint.layout import JOIN_STORES
from epochal.errors import EditError, StateError, StateValueError
from epochal.state.files.partitioning import place_of, placing_columns
from epochal.state.files.rocksdb_keys import rows_of
from epochal.state.rows.byte_spans import spans_of
from epochal.state.rows.column_decoder import decode_rows
from epochal.state.rows.tagged_json import json_column, row_from_json
from epochal.state.rows.types import StructType
from epochal.state.rows.unsafe_row import encode_row
from epochal.tools.edit.edit_file_log import SinkSurvey
from epochal.tools.edit.edit_plan import Plan
from epochal.tools.edit.survey import Survey
from epochal.tools.edit_state.edit_state import (
    EditBase,
    EditedBatch,
    changelog_edit,
    delta_files,
    find_edit_base,
    plan_batch,
)
from epochal.tools.read_state.load_version import load_rows
from epochal.tools.read_state.read_target import (
    JOIN_OPERATOR,
    Provider,
    StateBatch,
    StoreTarget,
)

DETAILS_SHOWN = 100


@dataclass(frozen=True, slots=True)
class Mutation:
    """A key to put or, without a value, to delete; both in JSON form."""

    key: Mapping[str, Any]
    value: Mapping[str, Any] | None


def plan_mutations(
    surveyed: Survey,
    mutations: Sequence[Mutation],
    *,
    operator_id: int = 0,
    store_name: str = "default",
    sink: SinkSurvey | None = None,
) -> Plan:
    """Put and delete keys of one store, as one new batch."""
    if not mutations:
        raise EditError(surveyed.url, "there is nothing to put or delete.")
    base = find_edit_base(surveyed, provider=None)
    batch = StateBatch(Checkpoint(surveyed.files), base.batch_id)
    target = batch.store(operator_id, store_name)
    _refuse_dependent_stores(base, batch, target)
    changed = _by_partition(batch, target, mutations)
    before = _values_before(base, target, changed)
    edited = _edited(base, target, changed)
    puts = sum(1 for m in mutations if m.value is not None)
    replaced = len(before) - (len(mutations) - puts)
    words = [f"put {puts} keys ({replaced} of them replace a value)"] if puts else []
    if deletes := len(mutations) - puts:
        words.append(f"delete {deletes} keys")
    return plan_batch(
        base,
        edited,
        command="state-put" if puts else "state-delete",
        summary=f"{' and '.join(words)} in operator {operator_id}, as batch {base.batch_id + 1}",
        arguments={"operator": str(operator_id), "store": store_name},
        sink=sink,
        details=tuple(_details(target, changed, before)),
    )


Records = dict[bytes, bytes | None]


def _by_partition(
    batch: StateBatch, target: StoreTarget, mutations: Iterable[Mutation]
) -> dict[int, Records]:
    key_schema, value_schema = target.schema.key, target.schema.value
    placing = placing_columns(
        batch.operator_name(target.operator_id), target.store_name, key_schema
    )
    partitions = target.settings.partitions or len(target.partitions)
    changed: dict[int, Records] = defaultdict(dict)
    for number, mutation in enumerate(mutations):
        key = _encoded(mutation.key, key_schema, f"row {number}: key")
        value = None
        if mutation.value is not None:
            value = _encoded(mutation.value, value_schema, f"row {number}: value")
        partition = place_of(key, key_schema, placing, partitions)
        if partition not in target.partitions:
            raise EditError(
                target.files.url,
                f"row {number} belongs to partition {partition}, which does not exist.",
            )
        if key in changed[partition]:
            raise StateValueError(f"row {number}: key", "struct", "the same key was given before")
        changed[partition][key] = value
    return changed


def _encoded(value: Mapping[str, Any], schema: StructType, path: str) -> bytes:
    row = row_from_json(value, schema, path)
    for field, item in zip(schema.fields, row, strict=True):
        if item is None and not field.nullable:
            raise StateValueError(f"{path}.{field.name}", "", "it cannot be null")
    return encode_row(row, schema)


def _values_before(
    base: EditBase, target: StoreTarget, changed: Mapping[int, Records]
) -> dict[bytes, bytes]:
    """The values that the changed keys have now; refuse deletes of keys that do not exist."""
    encoded = target.settings.provider is Provider.ROCKSDB
    found: dict[bytes, bytes] = {}
    for partition, records in changed.items():
        for rows in load_rows(target, partition):
            keys = rows_of(rows.keys, rows.source) if encoded else rows.keys
            values = rows_of(rows.values, rows.source) if encoded else rows.values
            found.update(
                (key, value) for key, value in zip(keys, values, strict=True) if key in records
            )
        absent = [key for key, value in records.items() if value is None and key not in found]
        if absent:
            raise EditError(
                base.url,
                f"{len(absent)} of the keys to delete are not in the state "
                f"(the first is {absent[0].hex()}). Nothing was changed.",
            )
    return found


def _details(
    target: StoreTarget, changed: Mapping[int, Records], before: Mapping[bytes, bytes]
) -> Iterator[str]:
    """What happens to each key, up to a limit: its old value and its new one, as JSON."""
    key_schema, value_schema = target.schema.key, target.schema.value
    records = [item for each in changed.values() for item in each.items()]
    for key, value in records[:DETAILS_SHOWN]:
        old = _shown(before[key], value_schema) if key in before else "no value"
        new = _shown(value, value_schema) if value is not None else "deleted"
        yield f"{_shown(key, key_schema)}: {old} -> {new}"
    if len(records) > DETAILS_SHOWN:
        yield f"... and {len(records) - DETAILS_SHOWN} more keys"


def _shown(row: bytes, schema: StructType) -> str:
    try:
        column = decode_rows(spans_of([row]), schema, source="state")
    except StateError:
        return f"{len(row)} unreadable bytes"
    return json.dumps(json_column(column, schema)[0], ensure_ascii=False)


def _edited(base: EditBase, target: StoreTarget, changed: Mapping[int, Records]) -> EditedBatch:
    stores = {
        store.partition: store
        for store in base.stores
        if store.operator == target.operator_id and store.name == target.store_name
    }
    by_path = {stores[partition].path: list(r.items()) for partition, r in changed.items()}
    if target.settings.provider is Provider.HDFS:
        return EditedBatch(delta_files(base, by_path))
    return changelog_edit(base, by_path)


def _refuse_dependent_stores(base: EditBase, batch: StateBatch, target: StoreTarget) -> None:
    name = batch.operator_name(target.operator_id)
    if name == JOIN_OPERATOR or target.store_name in JOIN_STORES or target.family is not None:
        raise EditError(
            base.url,
            f"operator {target.operator_id} keeps its state in several stores that depend on "
            f"each other; changing one of them would break the others.",
        )
    if target.encoder.kind != "plain" and target.settings.provider is Provider.ROCKSDB:
        raise EditError(
            base.url,
            f"operator {target.operator_id} splits its RocksDB keys for scans; such keys can be "
            f"read but not written.",
        )
