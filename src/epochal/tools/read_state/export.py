"""Exports state rows as JSON objects, or to Parquet, CSV or JSON-lines files.

Rows are read partition by partition, so only one partition is in memory at a time. CSV has no
structs: there, every field of a key or value becomes a separate column (`key.user`), and a nested
value becomes JSON.
"""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from epochal.errors import OptionError
from epochal.state.rows.tagged_json import json_rows
from epochal.state.rows.types import StructType, field_names
from epochal.tools.read_state.read import StateReader, choose_partitions
from epochal.tools.reporting import tracked


def json_batches(
    reader: StateReader, partition: int | None = None
) -> Iterator[list[dict[str, Any]]]:
    """The rows as JSON objects, in batches; the partition is the first field of each."""
    kinds = [kind for _, kind in reader.fields]
    names = [name for name, _ in reader.fields]
    order = ["partition_id", *(name for name in names if name != "partition_id")]
    by_name = dict(zip(names, kinds, strict=True))
    for number in tracked(choose_partitions(reader.target, partition)):
        for batch in reader.batches(number):
            yield from json_rows(batch.select(order), [by_name[name] for name in order])


def export_state(reader: StateReader, path: str, partition: int | None = None) -> int:
    """Write the rows to a local file, all or none; return their number."""
    writers = {".parquet": _to_parquet, ".csv": _to_csv, ".jsonl": _to_json_lines}
    write = writers.get(os.path.splitext(path)[1])
    if write is None:
        raise OptionError(
            f"{path}: the ending selects the format and must be one of {', '.join(writers)}."
        )
    folder = os.path.dirname(path) or "."
    if not os.path.isdir(folder):
        raise OptionError(f"{path}: there is no directory {folder}. Create it, or choose another.")
    partial = f"{path}.part"
    try:
        count = write(reader, partial, partition)
        os.replace(partial, path)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(partial)
    return count


def _to_parquet(reader: StateReader, path: str, partition: int | None) -> int:
    count = 0
    with pq.ParquetWriter(path, reader.schema()) as writer:
        for number in tracked(choose_partitions(reader.target, partition)):
            rows = pa.Table.from_batches(reader.batches(number), reader.schema())
            writer.write_table(rows)  # writing batch by batch would make small row groups
            count += len(rows)
    return count


def _to_json_lines(reader: StateReader, path: str, partition: int | None) -> int:
    encoder = msgspec.json.Encoder()
    count = 0
    with open(path, "wb") as out:
        for rows in json_batches(reader, partition):
            out.write(encoder.encode_lines(rows))
            count += len(rows)
    return count


def _to_csv(reader: StateReader, path: str, partition: int | None) -> int:
    columns: list[tuple[str, str | None]] = [("partition_id", None)]
    for name, kind in reader.fields:
        if isinstance(kind, StructType):
            columns += [(name, field) for field in field_names(kind)]
        elif name != "partition_id":
            columns.append((name, None))
    count = 0
    with open(path, "w", encoding="utf-8", newline="") as out:
        writer = csv.writer(out)
        writer.writerow([f"{name}.{field}" if field else name for name, field in columns])
        for rows in json_batches(reader, partition):
            writer.writerows([_cell(row, name, field) for name, field in columns] for row in rows)
            count += len(rows)
    return count


def _cell(row: dict[str, Any], name: str, field: str | None) -> Any:
    value = row[name]
    if field is not None:
        value = None if value is None else value[field]
    nested = isinstance(value, dict | list)
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")) if nested else value
