"""Reads and writes whole stores, or variables of transformWithState, row by row.

A row is a pair of tuples, whatever the provider: the key's columns and the value's columns. A list
of transformWithState has a list of tuples as its value. Indexes of transformWithState are neither
read nor written here: they follow from the rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

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
from epochal.state.rows.unsafe_row import decode_row, encode_row
from epochal.state.store.rocksdb_directory import RocksContent
from epochal.tools.edit_state.edit_state import EditBase
from epochal.tools.edit_state.next_version import NextVersion, Place, load_content
from epochal.tools.inspect.state_listing import StoreListing
from epochal.tools.read_state.load_version import load_version
from epochal.tools.read_state.read import StoreReader
from epochal.tools.read_state.read_target import Provider, StateBatch, StoreTarget


def avro_forms(batch: StateBatch, operator: int) -> dict[str, AvroForm]:
    """Those families of an operator whose rows are stored as Avro."""
    targets = [batch.family(operator, name) for name in batch.schemas(operator)]
    return {each.family: each.avro for each in targets if each.family and each.avro is not None}


def require_same_families(
    store: StoreListing, content: RocksContent, known: Mapping[str, int]
) -> None:
    """Raise EditError if a partition numbers its families otherwise than another one."""
    if known and dict(content.families) != dict(known):
        raise EditError(
            store.path,
            f"its column families are numbered {dict(content.families)}, but those of another "
            f"partition {dict(known)}. Rows cannot be moved between them.",
        )


def entry_prefix(content: RocksContent, family: str | None) -> bytes:
    """What the keys of a family start with; nothing in a store without families."""
    return b"" if family is None else family_prefix(content.families[family])


def family_of(batch: StateBatch, reader: StoreReader, content: RocksContent) -> Family:
    """How a RocksDB-backed store or variable encodes its rows, and the indexes on them."""
    target, variable = reader.target, reader.variable
    if variable is None:
        return Family(rows_of_target(target))
    lists = (variable.name,) if variable.kind == "ListState" else ()
    schemas = batch.schemas(target.operator_id, target.store_name)
    avro = avro_forms(batch, target.operator_id)
    return families_of(schemas, lists, content.families, avro)[variable.name]


def rows_of_target(target: StoreTarget) -> FamilyRows:
    """How a RocksDB-backed store encodes its rows."""
    name = target.family or target.store_name
    schema = replace(target.schema, name=name, encoder=target.encoder)
    return FamilyRows(schema, target.has_lists, target.avro)


def read_rows(
    base: EditBase, target: StoreTarget, store: StoreListing
) -> Iterator[tuple[Row, RowOrList]]:
    """The rows of one partition."""
    schema = target.schema
    if base.settings.provider is Provider.HDFS:
        files = base.surveyed.files.at(store.path)
        for rows in load_version(files, base.version, base.settings):
            for key, value in zip(rows.keys, rows.values, strict=True):
                yield (
                    decode_row(key, schema.key, source=rows.source),
                    decode_row(value, schema.value, source=rows.source),
                )
        return
    content, encoded = load_content(base, store), rows_of_target(target)
    skip = len(entry_prefix(content, target.family))
    for key, value in content.family(target.family):
        yield (
            encoded.decode_key(key[skip:], store.path),
            encoded.decode_value(key, value, base.settings.form, store.path),
        )


def write_rows(
    base: EditBase,
    version: NextVersion,
    place: Place,
    schema: FamilySchema,
    rows: Iterable[tuple[Row, Row]],
) -> None:
    """Give a store without column families exactly these rows."""
    if base.settings.provider is Provider.HDFS:
        pairs = [(encode_row(k, schema.key), encode_row(v, schema.value)) for k, v in rows]
        keys, values = spans_of([k for k, _ in pairs]), spans_of([v for _, v in pairs])
        version.write_rows(place, [Rows(keys, values, place.path)])
        return
    encoded, form = FamilyRows(schema), base.settings.form
    entries: dict[bytes, bytes] = {}
    for key, value in rows:
        at = encoded.encode_key(key)
        entries[at] = encoded.encode_value(at, value, form)
    version.write_content(place, RocksContent(entries))
