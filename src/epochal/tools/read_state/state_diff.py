"""Compares one store between two batches or two checkpoints.

Only the content of rows counts, not their partition: after a repartition nothing differs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from epochal.errors import StateReadError
from epochal.tools.read_state.raw_rows import StoredRows, load_stored, same_form
from epochal.tools.read_state.read import StateReader


@dataclass(frozen=True, slots=True)
class Difference:
    """A key that was added or removed, or whose value changed."""

    change: str
    key: dict[str, Any]
    before: dict[str, Any] | None
    after: dict[str, Any] | None

    def as_json(self) -> dict[str, Any]:
        return {
            "change": self.change,
            "key": self.key,
            "before": self.before,
            "after": self.after,
        }


@dataclass(frozen=True, slots=True)
class Differences:
    """The number of differences, and the differing rows up to the limit."""

    added: int
    removed: int
    changed: int
    same: int
    rows: tuple[Difference, ...]


def differences(
    earlier: StateReader, later: StateReader, *, limit: int | None = None
) -> Differences:
    """Compare a store as seen by two readers."""
    for reader in (earlier, later):
        if reader.target.has_lists:
            raise StateReadError(
                reader.target.files.url,
                "the elements of a list have no keys to compare by; use `read --changes-since`.",
                "STATE_STORE_UNSUPPORTED_OPERATION",
            )
    if not same_form(earlier.target, later.target):
        raise StateReadError(
            later.target.files.url,
            "the two stores differ in provider, encoding or schema, so their bytes cannot be "
            "compared; export both and compare the files.",
            "STATE_STORE_UNSUPPORTED_OPERATION",
        )
    before, after = load_stored(earlier), load_stored(later)
    places: Any = pc.index_in(after.keys, value_set=before.keys)
    found = places.is_valid().to_numpy(zero_copy_only=False)
    added = np.flatnonzero(~found)
    matched = np.flatnonzero(found)
    olds = places.drop_null().to_numpy(zero_copy_only=False).astype(np.int64)
    equal: Any = pc.equal(after.values.take(pa.array(matched)), before.values.take(pa.array(olds)))
    differs = ~equal.to_numpy(zero_copy_only=False)
    gone: Any = pc.invert(pc.is_in(before.keys, value_set=after.keys))
    removed = np.flatnonzero(gone.to_numpy(zero_copy_only=False))
    rows = [
        *_one_sided("added", after, added[:limit]),
        *_one_sided("removed", before, removed[:limit]),
        *_two_sided(before, olds[differs][:limit], after, matched[differs][:limit]),
    ]
    changed = int(differs.sum())
    return Differences(
        len(added), len(removed), changed, len(matched) - changed, tuple(rows[:limit])
    )


def _one_sided(change: str, stored: StoredRows, which: Any) -> list[Difference]:
    is_new = change == "added"
    return [
        Difference(change, key, None if is_new else value, value if is_new else None)
        for key, value in map(_split, stored.decoded(which))
    ]


def _two_sided(before: StoredRows, olds: Any, after: StoredRows, news: Any) -> list[Difference]:
    pairs = zip(before.decoded(olds), after.decoded(news), strict=True)
    split = ((_split(old), _split(new)) for old, new in pairs)
    return [Difference("changed", key, old, new) for (key, old), (_, new) in split]


def _split(row: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The key of a row, and the rest of it. An entry of a map has two keys."""
    named = {"key", "user_map_key", "expiration_timestamp_ms"} & row.keys()
    if named == {"key"}:
        return row["key"], row.get("value") or {}
    key = {name: row[name] for name in row if name in named}
    return key, row.get("user_map_value") or {}
