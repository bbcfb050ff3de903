"""Every byte of state that released Sparks wrote: decoded, checked, encoded again, placed.

All deltas and snapshots of HDFS-backed stores are read; each key and value is decoded both as a
column and as a row, encoded again both ways, and each key must hash to the directory it is in.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.golden.library import Golden, cases, facts, unpack
from tests.unit.state.arrow_values import from_arrow

from epochal.state.files.codecs import decompress
from epochal.state.files.delta_snapshot import (
    FileKind,
    Records,
    encode_records,
    encode_spans,
    scan_records,
)
from epochal.state.files.partitioning import placing_columns
from epochal.state.files.schema_file import FamilySchema, encode_schema_file, parse_schema_file
from epochal.state.rows.byte_spans import Spans
from epochal.state.rows.column_decoder import decode_rows
from epochal.state.rows.column_encoder import encode_rows
from epochal.state.rows.murmur3 import partition_ids
from epochal.state.rows.types import Kind, Layout, StructType, bitset_bytes
from epochal.state.rows.unsafe_row import decode_row, encode_row

STATEFUL = [golden for golden in cases() if facts(golden).get("state")]
CODEC = "spark.sql.streaming.stateStore.compression.codec"
PROVIDER = "spark.sql.streaming.stateStore.providerClass"
CHECKSUMS = "spark.sql.streaming.stateStore.rowChecksum.enabled"


@dataclass(frozen=True)
class StateFile:
    """A delta or snapshot, and what is needed to read it."""

    path: Path
    partition: int
    operator: str | None
    store: str
    schema: FamilySchema
    records: Records
    raw: bytes
    row_checksums: bool


def conf_of(checkpoint: Path) -> dict[str, str]:
    newest = max((checkpoint / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
    found: dict[str, str] = json.loads(newest.read_text().splitlines()[1])["conf"]
    return found


def operator_name(operator: Path) -> str | None:
    metadata = operator / "_metadata" / "metadata"
    if not metadata.exists():
        return None
    found: str = json.loads(metadata.read_text().splitlines()[1])["operatorInfo"]["operatorName"]
    return found


def state_files(checkpoint: Path) -> Iterator[StateFile]:
    conf = conf_of(checkpoint)
    codec, checksums = conf.get(CODEC, "lz4"), conf.get(CHECKSUMS) == "true"
    for schema_path in sorted(checkpoint.glob("state/*/0/**/_metadata/schema")):
        (schema,) = parse_schema_file(schema_path.read_bytes(), source=str(schema_path))
        inside = schema_path.parent.parent.relative_to(checkpoint).parts
        operator, store = checkpoint / "state" / inside[1], "/".join(inside[3:])
        for path in sorted(operator.glob(f"[0-9]*/{store or '.'}/*.*")):
            if path.name.startswith(".") or path.suffix not in (".delta", ".snapshot"):
                continue
            raw = decompress(path.read_bytes(), codec, source=str(path))
            kind = FileKind(path.suffix[1:])
            records = scan_records(raw, kind, row_checksums=checksums, source=str(path))
            partition = int(path.relative_to(operator).parts[0])
            name = operator_name(operator)
            yield StateFile(path, partition, name, store, schema, records, raw, checksums)


@pytest.fixture(scope="module", params=STATEFUL, ids=str)
def files(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> list[StateFile]:
    golden: Golden = request.param
    found = unpack(golden, tmp_path_factory.mktemp(str(golden)))
    read = list(state_files(found.checkpoint))
    in_rocksdb = "RocksDB" in conf_of(found.checkpoint).get(PROVIDER, "")
    assert in_rocksdb == (not read)
    return read


def both_ways(rows: Spans, schema: StructType, source: str) -> list[Any]:
    """The rows' values, equal as a column and one at a time."""
    column = decode_rows(rows, schema, source=source)
    column.validate(full=True)
    values = [decode_row(raw, schema, source=source) for raw in rows]
    assert repr(from_arrow(column, schema.layout)) == repr(values)  # repr: NaN is equal to itself
    return values


def test_every_row_is_well_formed_as_a_row_and_as_a_column(files: list[StateFile]) -> None:
    for file in files:
        both_ways(file.records.keys, file.schema.key, f"{file.path} keys")
        kept = file.records.values.take(~file.records.deleted)
        both_ways(kept, file.schema.value, f"{file.path} values")


def encoded_again(rows: Spans, schema: StructType) -> list[bytes]:
    """The bytes we make of the rows' values, the same from a column and one at a time."""
    one_by_one = [encode_row(decode_row(raw, schema), schema) for raw in rows]
    assert list(encode_rows(decode_rows(rows, schema), schema)) == one_by_one
    return one_by_one


def blanked(row: bytes, layout: Layout) -> bytes:
    """The row without what Spark left in the room of a null interval: whatever was there before."""
    data = bytearray(row)
    bitset = bitset_bytes(len(layout.children))
    for index, child in enumerate(layout.children):
        if child.kind is Kind.INTERVAL and data[index // 8] >> index % 8 & 1:
            slot = bitset + 8 * index
            at = int.from_bytes(data[slot + 4 : slot + 8], "little")
            data[at : at + 16] = bytes(16)
    return bytes(data)


def test_keys_encode_to_the_bytes_spark_wrote(files: list[StateFile]) -> None:
    for file in files:
        assert encoded_again(file.records.keys, file.schema.key) == list(file.records.keys)


def test_values_encode_to_the_bytes_spark_wrote(files: list[StateFile]) -> None:
    for file in files:
        kept = file.records.values.take(~file.records.deleted)
        written = [blanked(row, file.schema.value.layout) for row in kept]
        assert encoded_again(kept, file.schema.value) == written


def test_every_key_hashes_to_the_directory_it_is_in(files: list[StateFile]) -> None:
    for file in files:
        partitions = len(list(file.path.parents[len(Path(file.store).parts)].parent.glob("[0-9]*")))
        placing = placing_columns(file.operator, file.store or "default", file.schema.key)
        columns = decode_rows(file.records.keys, file.schema.key).flatten()
        if placing.fields:
            placed = partition_ids(columns[: len(placing.fields)], placing, partitions)
        else:
            placed = np.zeros(len(file.records), np.int64)
        assert placed.tolist() == [file.partition] * len(file.records), file.path


def test_records_encode_to_the_stream_spark_wrote(files: list[StateFile]) -> None:
    for file in files:
        records, sums = file.records, file.row_checksums
        assert encode_records(records.to_list(), row_checksums=sums) == file.raw
        if not records.deleted.any():
            assert encode_spans(records.keys, records.values, row_checksums=sums) == file.raw


def test_schema_files_encode_to_the_bytes_spark_wrote(tmp_path: Path) -> None:
    seen = 0
    for golden in STATEFUL:
        checkpoint = unpack(golden, tmp_path / str(golden)).checkpoint
        paths = [*checkpoint.glob("state/**/_metadata/schema")]
        paths += checkpoint.glob("state/*/_stateSchema/*/[0-9]*")
        for path in paths:
            raw = path.read_bytes()
            families = parse_schema_file(raw, source=str(path))
            assert encode_schema_file(families, version=int(raw[3:4])) == raw, path
            seen += 1
    assert seen > len(STATEFUL) // 2
