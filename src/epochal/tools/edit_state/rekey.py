"""Decides how to give the rows of an operator other keys.

A function of the user's gets every key and value, in the JSON form that `epochal state read` shows,
and returns the new key, or the new key and the new value. Rows that get the same key are merged by
a second function. Without one, two rows that meet are an error that names both: only the author of
the query knows what the sum of two of its states is.

Every row goes to the partition that Spark's hash of its new key selects. The schema file is
replaced if the columns change, and then older versions of the store are deleted.

For transformWithState, all variables and timers get other keys at once. All column families repeat
the grouping key, each in its own place. The rows of every variable are decoded, get the new key,
and are encoded again; the indexes follow from them. What two keys would be together only the
processor knows, so two keys that become one are refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from epochal.checkpoint.layout import DEFAULT_STORE, JOIN_STORES, StoreKey
from epochal.checkpoint.operator_metadata import REPEATS_OPERATOR
from epochal.errors import EditError, OptionError
from epochal.state.files.merge import Rows
from epochal.state.files.partitioning import LIMIT_OPERATOR, SESSION_OPERATOR, owner_path
from epochal.state.files.rocksdb_family import Row, families_of, family_prefix
from epochal.state.files.schema_file import FamilySchema, KeyEncoder
from epochal.state.rows.byte_spans import spans_of
from epochal.state.rows.column_decoder import decode_rows
from epochal.state.rows.tagged_json import json_column, row_from_json
from epochal.state.rows.types import StructType
from epochal.state.rows.unsafe_row import encode_row
from epochal.state.store.contract import StoreContent
from epochal.tools.edit.edit_file_log import SinkSurvey
from epochal.tools.edit.edit_plan import Plan
from epochal.tools.edit.survey import Survey
from epochal.tools.edit_state.edit_state import (
    NO_WAY_BACK,
    EditBase,
    NextVersion,
    avro_forms,
    find_edit_base,
    form_of,
    new_families,
    new_schema,
    partitions_of,
    plan_batch,
    require_same_families,
)
from epochal.tools.read_state.export import json_batches
from epochal.tools.read_state.read import open_store
from epochal.tools.read_state.read_target import JOIN_OPERATOR, StoreTarget
from epochal.tools.reporting import tracked
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
    count = base.settings.partitions or len(target.partitions) if schema.key.fields else 1
    parts: list[list[tuple[Row, Row]]] = [[] for _ in range(count)]
    places = partitions_of([key for key, _ in pairs], schema.key, count)
    for pair, partition in zip(pairs, places, strict=True):
        parts[partition].append(pair)
    version = NextVersion(base)
    version.remove(operator_id, target.store_name)
    for partition, part in enumerate(parts):
        version.write_rows(StoreKey(operator_id, partition, target.store_name), schema, part)
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
    rekeyed = _RekeyedVariables(base, operator_id, function, key_schema)
    require_keyed(base, operator_id, rekeyed.old_key, rekeyed.new_key)
    version = NextVersion(base)
    rekeyed.write(version)
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


class _RekeyedVariables:
    """The new content of an operator, and its schemas."""

    def __init__(
        self, base: EditBase, operator: int, function: KeyFunction, key_schema: StructType | None
    ) -> None:
        self._base, self._operator, self._function = base, operator, function
        variables = (base.batch.variables(operator) or {}).values()
        self._lists = [one.name for one in variables if one.kind == "ListState"]
        maps = [one.name for one in variables if one.kind == "MapState"]
        self._before = base.batch.schemas(operator)
        self._paths = {name: owner_path(name, maps) for name in self._before}
        name = next(iter(self._before))
        self.old_key = self._before[name].key
        for ordinal in self._paths[name]:
            self.old_key = _struct(self.old_key, ordinal)
        self.new_key = key_schema or self.old_key
        self.schemas = {
            name: replace(schema, key=_with_owner(schema.key, self._paths[name], self.new_key))
            for name, schema in self._before.items()
        }
        self._avro = avro_forms(base.batch, operator)
        self._new_avro = {
            name: replace(form, key=self.schemas[name].key) for name, form in self._avro.items()
        }
        self._new: dict[bytes, Row | None] = {}
        self._came_from: dict[bytes, str] = {}
        self.rows = self.dropped = 0

    @property
    def keys(self) -> int:
        return len(self._came_from)

    def write(self, version: NextVersion) -> None:
        stores = self._base.stores(self._operator)
        parts: list[dict[bytes, bytes]] = [{} for _ in stores]
        content = self._base.settings.format.versions.empty
        highest = 0
        for store in tracked(stores):
            numbers = content.families
            content = self._base.content(store)
            require_same_families(store, content, numbers)
            highest = max(highest, content.highest_family)
            rows = self._read(content, store.path)
            self._find_new_keys([owner for _, owner, _, _ in rows])
            for partition, entries in self._encoded(rows, content.families, len(stores)):
                parts[partition].update(entries)
        for partition, entries in enumerate(parts):
            keys, values = spans_of(list(entries)), spans_of(list(entries.values()))
            rekeyed = content.with_rows([Rows(keys, values, self._base.url)], highest)
            version.write(StoreKey(self._operator, partition), rekeyed)

    def changed_schemas(self) -> list[FamilySchema]:
        """The schemas to record; none if they are as before."""
        return [] if self.schemas == self._before else list(self.schemas.values())

    def _read(self, content: StoreContent, source: str) -> list[tuple[str, Row, Row, Any]]:
        """Family, grouping key, whole key and value of every row that is not in an index."""
        rows_read: list[tuple[str, Row, Row, Any]] = []
        for name, family in families_of(
            self._before, self._lists, content.families, self._avro
        ).items():
            for rows in content.parts(name, source):
                form = form_of(self._base, family.rows, content, name, source)
                for at, stored in zip(rows.keys, rows.values, strict=True):
                    key = form.decode_key(at)
                    owner = key
                    for ordinal in self._paths[name]:
                        owner = owner[ordinal]
                    rows_read.append((name, owner, key, form.decode_value(at, stored)))
        return rows_read

    def _find_new_keys(self, owners: Sequence[Row]) -> None:
        encoded = {encode_row(owner, self.old_key) for owner in owners} - self._new.keys()
        listed = sorted(encoded)
        column = decode_rows(spans_of(listed), self.old_key, source="keys")
        for old, shown in zip(listed, json_column(column, self.old_key), strict=True):
            text = _text(shown)
            answer = _call(self._base, self._function, "the key function", shown, shown, {})
            if answer is None:
                self._new[old] = None
                continue
            row = tuple(row_from_json(answer, self.new_key, f"the new key of {text}"))
            new = encode_row(row, self.new_key)
            if new in self._came_from:
                raise EditError(
                    self._base.url,
                    f"the keys {self._came_from[new]} and {text} both become {_text(answer)}. What "
                    f"the variables of both together are cannot be told, so they must stay apart. "
                    f"Nothing was changed.",
                )
            self._new[old], self._came_from[new] = row, text

    def _encoded(
        self, rows: Sequence[tuple[str, Row, Row, Any]], numbers: Mapping[str, int], partitions: int
    ) -> Iterator[tuple[int, dict[bytes, bytes]]]:
        """The entries of rows and indexes under their new keys, by partition."""
        prefixes = {name: family_prefix(number) for name, number in numbers.items()}
        families = families_of(self.schemas, self._lists, numbers, self._new_avro)
        form = self._base.settings.form
        for name, owner, key, value in rows:
            self.rows += 1
            new = self._new[encode_row(owner, self.old_key)]
            if new is None:
                self.dropped += 1
                continue
            changed = _replaced(key, self._paths[name], new)
            changes = families[name].changes(
                [(changed, value)], (), prefixes.__getitem__, lambda _: None, form
            )
            entries = {at: stored for at, stored in changes if stored is not None}
            yield partitions_of([new], self.new_key, partitions)[0], entries


def _struct(schema: StructType, ordinal: int) -> StructType:
    nested = schema.fields[ordinal].data_type
    assert isinstance(nested, StructType), f"{schema.names[ordinal]} is no grouping key"
    return nested


def _with_owner(schema: StructType, path: tuple[int, ...], owner: StructType) -> StructType:
    if not path:
        return owner
    at, *rest = path
    inner = _with_owner(_struct(schema, at), tuple(rest), owner)
    fields = list(schema.fields)
    fields[at] = replace(fields[at], data_type=inner)
    return StructType(tuple(fields))


def _replaced(key: Row, path: tuple[int, ...], owner: Row) -> Row:
    if not path:
        return owner
    at, *rest = path
    return (*key[:at], _replaced(key[at], tuple(rest), owner), *key[at + 1 :])


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


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
