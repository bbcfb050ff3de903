"""Decides how to give the rows of an operator other keys.

A function of the user's gets every key and value, in the JSON form that `epochal state read` shows,
and returns the new key, or the new key and the new value. Rows that get the same key are merged by
a second function. Without one, two rows that meet are an error that names both: only the author of
the query knows what the sum of two of its states is.

Every row goes to the partition that Spark's hash of its new key selects. The schema file is
replaced if the columns change, and then older versions of the store are deleted.

For transformWithState, `rekey_variables` does the same with all variables and timers at once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from epochal.checkpoint.layout import DEFAULT_STORE, JOIN_STORES, StoreKey
from epochal.checkpoint.operator_metadata import REPEATS_OPERATOR
from epochal.errors import EditError, OptionError
from epochal.state.files.partitioning import LIMIT_OPERATOR, SESSION_OPERATOR
from epochal.state.files.rocksdb_family import Row
from epochal.state.files.schema_file import FamilySchema, KeyEncoder
from epochal.state.rows.tagged_json import row_from_json
from epochal.state.rows.types import StructType
from epochal.state.rows.unsafe_row import encode_row
from epochal.tools.edit.edit_file_log import SinkSurvey
from epochal.tools.edit.edit_plan import Plan
from epochal.tools.edit.survey import Survey
from epochal.tools.edit_state.edit_state import (
    NO_WAY_BACK,
    EditBase,
    NextVersion,
    find_edit_base,
    new_families,
    new_schema,
    partitions_of,
    plan_batch,
)
from epochal.tools.edit_state.rekey_variables import RekeyedVariables
from epochal.tools.read_state.export import json_batches
from epochal.tools.read_state.read import open_store
from epochal.tools.read_state.read_target import JOIN_OPERATOR, StoreTarget
from epochal.wording import counted

Json: TypeAlias = dict[str, Any]
KeyFunction: TypeAlias = Callable[[Json, Json], "Json | tuple[Json, Json] | None"]
"""From a key and a value to the new key, to both, or to None if the row is dropped."""
MergeFunction: TypeAlias = Callable[[Json, Json, Json], Json]
"""From a new key and two values to the value of both together."""

AGGREGATION_FORMAT = "spark.sql.streaming.aggregation.stateFormatVersion"
_UNFIT = {
    JOIN_OPERATOR: "its rows are spread over stores that depend on each other",
    SESSION_OPERATOR: "its values repeat the key",
    LIMIT_OPERATOR: "it has no key",
    REPEATS_OPERATOR: "its keys do not tell their partition",
}


@dataclass(slots=True)
class _Row:
    """A row under its new key, and the old key that it came from."""

    came_from: Json
    key: Row
    shown: Json
    value: Json


def plan_rekey(
    surveyed: Survey,
    function: KeyFunction,
    *,
    merge: MergeFunction | None = None,
    key_schema: StructType | None = None,
    value_schema: StructType | None = None,
    operator_id: int = 0,
    store_name: str = "default",
    sink: SinkSurvey | None = None,
) -> Plan:
    """Give every row the key that a function returns, as one new batch.

    `key_schema` and `value_schema` are for functions that return other columns.
    """
    base = find_edit_base(surveyed)
    if base.batch.variables(operator_id) is not None:
        if merge is not None or value_schema is not None:
            raise OptionError(
                "The variables of transformWithState get other keys, but keep their values: give "
                "neither a merge function nor a schema of values."
            )
        return _rekey_variables(base, operator_id, function, key_schema, sink)
    target = plain_store(base, operator_id, store_name)
    schema = replace(
        target.schema,
        key=key_schema or target.schema.key,
        value=value_schema or target.schema.value,
        encoder=KeyEncoder("plain"),
    )
    require_keyed(base, operator_id, target.schema.key, schema.key)
    rekeying = _Rekeying(base, function, merge, schema)
    for rows in json_batches(open_store(base.batch, operator_id, store_name)):
        for row in rows:
            rekeying.add(row["key"], row["value"])
    pairs = [(row.key, rekeying.value(row)) for row in rekeying.rows.values()]
    version = NextVersion(base)
    _write_store(base, version, target, schema, pairs)
    same = (schema.key, schema.value) == (target.schema.key, target.schema.value)
    others = () if same else new_schema(base, replace(schema, encoder=None), target)
    words = [f"{counted(rekeying.count, 'row')} under {counted(len(rekeying.rows), 'new key')}"]
    if rekeying.merged:
        words.append(f"{rekeying.merged} of them merged")
    if rekeying.dropped:
        words.append(f"{rekeying.dropped} dropped")
    return plan_batch(
        base,
        version.edited(others=others),
        command="state-rekey",
        summary=f"put {', '.join(words)} in operator {operator_id}",
        arguments={"operator": str(operator_id), "store": store_name},
        sink=sink,
        warnings=() if same else (NO_WAY_BACK,),
    )


def _rekey_variables(
    base: EditBase,
    operator_id: int,
    function: KeyFunction,
    key_schema: StructType | None,
    sink: SinkSurvey | None,
) -> Plan:
    """The same for transformWithState. Its functions see and give keys only."""
    rekeyed = RekeyedVariables(base, operator_id, key_schema)
    require_keyed(base, operator_id, rekeyed.old_key, rekeyed.new_key)

    def new_key(key: Json) -> Json | None:
        answer: Json | None = _call(base, function, "the key function", key, key, {})
        return answer

    version = NextVersion(base)
    rekeyed.write(version, new_key)
    schemas = rekeyed.changed_schemas()
    others = new_families(base, operator_id, DEFAULT_STORE, schemas) if schemas else ()
    words = f"; {counted(rekeyed.dropped, 'row')} dropped" if rekeyed.dropped else ""
    return plan_batch(
        base,
        version.edited(others=others),
        command="state-rekey",
        summary=(
            f"put {counted(rekeyed.rows, 'row')} of the variables and timers of operator "
            f"{operator_id} under {counted(rekeyed.keys, 'new key')}{words}"
        ),
        arguments={"operator": str(operator_id)},
        sink=sink,
    )


class _Rekeying:
    def __init__(
        self,
        base: EditBase,
        function: KeyFunction,
        merge: MergeFunction | None,
        schema: FamilySchema,
    ) -> None:
        self._base, self._function, self._merge, self._schema = base, function, merge, schema
        self.rows: dict[bytes, _Row] = {}
        self.count = self.merged = self.dropped = 0

    def add(self, key: Json, value: Json) -> None:
        self.count += 1
        answer = _call(self._base, self._function, "the key function", key, key, value)
        if answer is None:
            self.dropped += 1
            return
        new_key, new_value = answer if isinstance(answer, tuple) else (answer, value)
        row = tuple(row_from_json(new_key, self._schema.key, f"the new key of {_text(key)}"))
        encoded = encode_row(row, self._schema.key)
        earlier = self.rows.get(encoded)
        if earlier is None:
            self.rows[encoded] = _Row(key, row, new_key, new_value)
            return
        if self._merge is None:
            raise EditError(
                self._base.url,
                f"the keys {_text(earlier.came_from)} and {_text(key)} both become "
                f"{_text(new_key)}. Give a merge function, which says what the value of both "
                f"together is. Nothing was changed.",
            )
        values = (earlier.value, new_value)
        merged = _call(self._base, self._merge, "the merge function", key, new_key, *values)
        self.rows[encoded] = replace(earlier, value=merged)
        self.merged += 1

    def value(self, row: _Row) -> Row:
        """The value of a row, as it is stored."""
        path = f"the new value of {_text(row.shown)}"
        return tuple(row_from_json(row.value, self._schema.value, path))


def _call(
    base: EditBase, function: Callable[..., Any], name: str, key: Json, *arguments: Any
) -> Any:
    try:
        return function(*arguments)
    except Exception as error:
        raise EditError(
            base.url,
            f"{name} failed for the key {_text(key)} with {type(error).__name__}: {error}. "
            f"Nothing was changed.",
        ) from error


def plain_store(base: EditBase, operator_id: int, store_name: str = "default") -> StoreTarget:
    """A store whose rows can be rewritten one by one; otherwise EditError."""
    batch = base.batch
    name = batch.operator_name(operator_id)
    reason = _UNFIT.get(name or "")
    if batch.variables(operator_id) is not None:
        reason = "its variables, timers and indexes all repeat the key"
    if store_name in JOIN_STORES:
        reason = _UNFIT[JOIN_OPERATOR]
    if reason is None:
        target = batch.store(operator_id, store_name)
        if target.encoder.kind != "plain":
            reason = _UNFIT[SESSION_OPERATOR]
        elif base.offsets.conf.get(AGGREGATION_FORMAT) == "1" and name in (None, "stateStoreSave"):
            reason = "the values of an aggregation of format 1 repeat the key"
    if reason is not None:
        raise EditError(
            base.url,
            f"operator {operator_id} ({name or 'of an unknown kind'}) does not have one row per "
            f"key that could be rewritten: {reason}.",
        )
    return target


def require_keyed(base: EditBase, operator_id: int, *keys: StructType) -> None:
    """Raise EditError if an operator keeps everything in one partition, or would."""
    if not all(key.fields for key in keys):
        raise EditError(
            base.url,
            f"operator {operator_id} would change between state with keys and state without, "
            f"which Spark keeps in another number of partitions. Keep at least one key column.",
        )


def _write_store(
    base: EditBase,
    version: NextVersion,
    target: StoreTarget,
    schema: FamilySchema,
    rows: Sequence[tuple[Row, Row]],
) -> None:
    """Give a store exactly these rows, each in the partition that its key selects."""
    count = base.settings.partitions or len(target.partitions)
    if not schema.key.fields:
        count = 1
    parts: list[list[tuple[Row, Row]]] = [[] for _ in range(count)]
    places = partitions_of([key for key, _ in rows], schema.key, count)
    for row, partition in zip(rows, places, strict=True):
        parts[partition].append(row)
    version.remove(target.operator_id, target.store_name)
    for partition, part in enumerate(parts):
        key = StoreKey(target.operator_id, partition, target.store_name)
        version.write_rows(key, schema, part)


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
