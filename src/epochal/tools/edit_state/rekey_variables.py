"""Gives the variables and timers of a transformWithState operator other grouping keys.

All column families repeat the grouping key, each in its own place. The rows of every variable are
decoded, get the new key, and are encoded again; the indexes follow from them. What two keys would
be together only the processor knows, so two keys that become one are refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from epochal.checkpoint.layout import StoreKey
from epochal.errors import EditError
from epochal.state.files.merge import Rows
from epochal.state.files.partitioning import owner_path
from epochal.state.files.rocksdb_family import Row, families_of, family_prefix
from epochal.state.files.schema_file import FamilySchema
from epochal.state.rows.byte_spans import spans_of
from epochal.state.rows.column_decoder import decode_rows
from epochal.state.rows.tagged_json import json_column, row_from_json
from epochal.state.rows.types import StructType
from epochal.state.rows.unsafe_row import encode_row
from epochal.state.store.contract import StoreContent
from epochal.tools.edit_state.edit_state import (
    EditBase,
    NextVersion,
    avro_forms,
    form_of,
    partitions_of,
    require_same_families,
)
from epochal.tools.reporting import tracked

NewKey = Callable[[dict[str, Any]], "dict[str, Any] | None"]
"""From a key in JSON form to the new one; None drops all that belongs to the key."""


class RekeyedVariables:
    """The new content of an operator, and its schemas."""

    def __init__(self, base: EditBase, operator: int, key_schema: StructType | None) -> None:
        self._base, self._operator = base, operator
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

    def write(self, version: NextVersion, new_key: NewKey) -> None:
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
            self._find_new_keys([owner for _, owner, _, _ in rows], new_key)
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

    def _find_new_keys(self, owners: Sequence[Row], new_key: NewKey) -> None:
        encoded = {encode_row(owner, self.old_key) for owner in owners} - self._new.keys()
        listed = sorted(encoded)
        column = decode_rows(spans_of(listed), self.old_key, source="keys")
        for old, shown in zip(listed, json_column(column, self.old_key), strict=True):
            text = json.dumps(shown, ensure_ascii=False)
            answer = new_key(shown)
            if answer is None:
                self._new[old] = None
                continue
            row = tuple(row_from_json(answer, self.new_key, f"the new key of {text}"))
            new = encode_row(row, self.new_key)
            if new in self._came_from:
                raise EditError(
                    self._base.url,
                    f"the keys {self._came_from[new]} and {text} both become "
                    f"{json.dumps(answer, ensure_ascii=False)}. What the variables of both "
                    f"together are cannot be told, so they must stay apart. Nothing was changed.",
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
