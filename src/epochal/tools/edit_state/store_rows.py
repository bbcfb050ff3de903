"""Reads and writes whole stores, or variables of transformWithState, row by row.

A row is a pair of tuples, whatever the provider: the key's columns and the value's columns. A list
of transformWithState has a list of tuples as its value. Indexes of transformWithState are neither
read nor written here: they follow from the rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from epochal.checkpoint.layout import StoreKey
from epochal.errors import EditError
from epochal.state.files.merge import Rows
from epochal.state.files.rocksdb_avro import AvroForm
from epochal.state.files.rocksdb_family import (
    Family,
    FamilyRows,
    Row,
    RowOrList,
    families_of,
    family_prefix,
)
from epochal.state.files.schema_file import FamilySchema
from epochal.state.rows.byte_spans import spans_of
from epochal.state.store.contract import RowForm, StoreContent
from epochal.tools.edit_state.edit_state import EditBase
from epochal.tools.edit_state.next_version import NextVersion
from epochal.tools.inspect.state_listing import StoreListing
from epochal.tools.read_state.read import StoreReader
from epochal.tools.read_state.read_target import StateBatch, StoreTarget


def avro_forms(batch: StateBatch, operator: int) -> dict[str, AvroForm]:
    """Those families of an operator whose rows are stored as Avro."""
    targets = [batch.family(operator, name) for name in batch.schemas(operator)]
    return {one.family: one.avro for one in targets if one.family and one.avro is not None}


def require_same_families(
    store: StoreListing, content: StoreContent, numbers: Mapping[str, int]
) -> None:
    """Raise EditError if a partition numbers its families otherwise than another one."""
    if numbers and dict(content.families) != dict(numbers):
        raise EditError(
            store.path,
            f"its column families are numbered {dict(content.families)}, but those of another "
            f"partition {dict(numbers)}. Rows cannot be moved between them.",
        )


def family_of(batch: StateBatch, reader: StoreReader, content: StoreContent) -> Family:
    """How a store or variable encodes its rows, and the indexes on them."""
    target, variable = reader.target, reader.variable
    if variable is None:
        return Family(rows_of_target(target))
    lists = (variable.name,) if variable.kind == "ListState" else ()
    schemas = batch.schemas(target.operator_id, target.store_name)
    avro = avro_forms(batch, target.operator_id)
    return families_of(schemas, lists, content.families, avro)[variable.name]


def rows_of_target(target: StoreTarget) -> FamilyRows:
    """How a store encodes its rows."""
    name = target.family or target.store_name
    schema = replace(target.schema, name=name, encoder=target.encoder)
    return FamilyRows(schema, target.has_lists, target.avro)


def form_of(
    base: EditBase, rows: FamilyRows, content: StoreContent, family: str | None, source: str
) -> RowForm:
    """How single rows of a store, or of one of its families, are encoded in its content."""
    settings = base.settings
    start = b"" if family is None else family_prefix(content.families[family])
    return settings.format.versions.row_form(start, rows, settings.form, source)


def read_rows(
    base: EditBase, target: StoreTarget, store: StoreListing
) -> Iterator[tuple[Row, RowOrList]]:
    """The rows of one partition."""
    content = base.content(store)
    for rows in content.parts(target.family, store.path):
        form = form_of(base, rows_of_target(target), content, target.family, rows.source)
        for key, value in zip(rows.keys, rows.values, strict=True):
            yield form.decode_key(key), form.decode_value(key, value)


def write_rows(
    base: EditBase,
    version: NextVersion,
    key: StoreKey,
    schema: FamilySchema,
    rows: Iterable[tuple[Row, Row]],
) -> None:
    """Give a store without column families exactly these rows."""
    empty = base.settings.format.versions.empty
    form = form_of(base, FamilyRows(schema), empty, None, key.path)
    keys, values = [], []
    for key_row, value in rows:
        keys.append(form.key(key_row))
        values.append(form.encode_value(keys[-1], value))
    version.write(key, empty.with_rows([Rows(spans_of(keys), spans_of(values), key.path)]))
