"""Measures a store, and compares it between two batches or two checkpoints.

Rows are compared and counted by their bytes, as Spark compares them. Only the rows of a result are
decoded. Sizes are those of the rows themselves, before compression and without a store's overhead
in memory. In a comparison only the content of rows counts, not their partition: after a repartition
nothing differs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from epochal.errors import StateReadError
from epochal.state.files.merge import Rows
from epochal.state.rows.byte_spans import Ints, Spans, as_spans
from epochal.state.rows.tagged_json import json_rows
from epochal.tools.read_state.read import StateReader, StoreReader, in_parallel
from epochal.tools.read_state.read_target import load_rows


@dataclass(frozen=True, slots=True)
class StoredRows:
    reader: StoreReader
    keys: Any
    values: Any
    partitions: Ints

    def __len__(self) -> int:
        return len(self.keys)

    def decoded(self, which: Sequence[int] | Ints) -> list[dict[str, Any]]:
        """The rows at these indices, in JSON form."""
        picks = pa.array(np.asarray(which, np.int64))
        rows = Rows(as_spans(self.keys.take(picks)), as_spans(self.values.take(picks)), "state")
        batch = self.reader.decode(rows, 0)
        kinds = [kind for _, kind in self.reader.fields]
        objects = [row for part in json_rows(batch, kinds) for row in part]
        for row, index in zip(objects, np.asarray(which).tolist(), strict=True):
            row["partition_id"] = int(self.partitions[index])
        return objects


def load_stored(reader: StateReader) -> StoredRows:
    if not isinstance(reader, StoreReader):
        raise StateReadError(
            reader.target.files.url,
            "this works on one store at a time: name it with --store instead of a join side.",
            "STDS_INVALID_OPTION_VALUE.WITH_MESSAGE",
        )
    chosen = reader.target.partitions
    loaded = in_parallel(lambda number: load_rows(reader.target, number), chosen)
    parts = [(number, rows) for number, read in zip(chosen, loaded, strict=True) for rows in read]
    empty: Any = pa.array([], pa.large_binary())
    keys = pa.concat_arrays([_wide(rows.keys) for _, rows in parts] or [empty])
    values = pa.concat_arrays([_wide(rows.values) for _, rows in parts] or [empty])
    numbers = [np.full(len(rows), number, np.int64) for number, rows in parts]
    return StoredRows(reader, keys, values, np.concatenate(numbers or [np.empty(0, np.int64)]))


def _wide(spans: Spans) -> Any:
    array: Any = spans.to_arrow()
    return array.cast(pa.large_binary())


@dataclass(frozen=True, slots=True)
class LargeKey:
    key: dict[str, Any]
    bytes: int


@dataclass(frozen=True, slots=True)
class PartitionStats:
    partition_id: int
    rows: int
    key_bytes: int
    value_bytes: int
    file_bytes: int
    largest: tuple[LargeKey, ...]


@dataclass(frozen=True, slots=True)
class StateStats:
    rows: int
    bytes: int
    file_bytes: int
    skew: float
    """The rows of the fullest partition divided by the average; 1.0 means evenly distributed."""
    partitions: tuple[PartitionStats, ...]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def measure_store(reader: StateReader, *, largest: int = 5) -> StateStats:
    stored = load_stored(reader)
    key_sizes, value_sizes = _sizes(stored.keys), _sizes(stored.values)
    parts: list[PartitionStats] = []
    for number in reader.target.partitions:
        mine = np.flatnonzero(stored.partitions == number)
        sizes = key_sizes[mine] + value_sizes[mine]
        top = mine[np.argsort(-sizes, kind="stable")[:largest]]
        files = stored.reader.target.directory(number).list()
        keys = (row["key"] for row in stored.decoded(top))
        bytes_of_top = (int(key_sizes[index] + value_sizes[index]) for index in top.tolist())
        part = PartitionStats(
            partition_id=number,
            rows=len(mine),
            key_bytes=int(key_sizes[mine].sum()),
            value_bytes=int(value_sizes[mine].sum()),
            file_bytes=sum(info.size for info in files if not info.is_dir and not info.hidden),
            largest=tuple(map(LargeKey, keys, bytes_of_top)),
        )
        parts.append(part)
    fullest = max((part.rows for part in parts), default=0)
    average = len(stored) / len(parts)
    return StateStats(
        rows=len(stored),
        bytes=int(key_sizes.sum() + value_sizes.sum()),
        file_bytes=sum(part.file_bytes for part in parts),
        skew=round(fullest / average, 3) if average else 1.0,
        partitions=tuple(parts),
    )


def _sizes(array: Any) -> Ints:
    lengths: Any = pc.binary_length(array)
    sizes: Ints = lengths.to_numpy(zero_copy_only=False).astype(np.int64)
    return sizes


@dataclass(frozen=True, slots=True)
class RowDifference:
    change: str
    key: dict[str, Any]
    before: dict[str, Any] | None
    after: dict[str, Any] | None

    def as_json(self) -> dict[str, Any]:
        return {"change": self.change, "key": self.key, "before": self.before, "after": self.after}


@dataclass(frozen=True, slots=True)
class StoreDifferences:
    added: int
    removed: int
    changed: int
    same: int
    rows: tuple[RowDifference, ...]


def compare_stores(
    earlier: StateReader, later: StateReader, *, limit: int | None = None
) -> StoreDifferences:
    unsupported = "STATE_STORE_UNSUPPORTED_OPERATION"
    for reader in (earlier, later):
        if reader.target.has_lists:
            raise StateReadError(
                reader.target.files.url,
                "the elements of a list have no keys to compare by; use `read --changes-since`.",
                unsupported,
            )
    # Only if all these are equal, equal rows of the two stores have equal bytes.
    forms = [
        (target.settings.format, target.encoder, target.schema.key, target.schema.value)
        for target in (earlier.target, later.target)
    ]
    if forms[0] != forms[1]:
        raise StateReadError(
            later.target.files.url,
            "the two stores differ in provider, encoding or schema, so their bytes cannot be "
            "compared; export both and compare the files.",
            unsupported,
        )
    before, after = load_stored(earlier), load_stored(later)
    places: Any = pc.index_in(after.keys, value_set=before.keys)
    is_known = places.is_valid().to_numpy(zero_copy_only=False)
    added = np.flatnonzero(~is_known)
    matched = np.flatnonzero(is_known)
    olds = places.drop_null().to_numpy(zero_copy_only=False).astype(np.int64)
    equal: Any = pc.equal(after.values.take(pa.array(matched)), before.values.take(pa.array(olds)))
    differs = ~equal.to_numpy(zero_copy_only=False)
    gone: Any = pc.invert(pc.is_in(before.keys, value_set=after.keys))
    removed = np.flatnonzero(gone.to_numpy(zero_copy_only=False))
    news = map(_split, after.decoded(added[:limit]))
    lost = map(_split, before.decoded(removed[:limit]))
    was = map(_split, before.decoded(olds[differs][:limit]))
    now = map(_split, after.decoded(matched[differs][:limit]))
    rows = [
        *(RowDifference("added", key, None, value) for key, value in news),
        *(RowDifference("removed", key, value, None) for key, value in lost),
        *(
            RowDifference("changed", key, old, new)
            for (key, old), (_, new) in zip(was, now, strict=True)
        ),
    ]
    changed = int(differs.sum())
    return StoreDifferences(
        len(added), len(removed), changed, len(matched) - changed, tuple(rows[:limit])
    )


def _split(row: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The key of a row, and the rest of it. An entry of a map has two keys."""
    named = {"key", "user_map_key", "expiration_timestamp_ms"} & row.keys()
    if named == {"key"}:
        return row["key"], row.get("value") or {}
    key = {name: row[name] for name in row if name in named}
    return key, row.get("user_map_value") or {}
