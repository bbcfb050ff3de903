"""The rows of one store of a task, on local disk, as an operator sees them.

An operator that gets such rows loads them one by one when it needs them, instead of all at once.

Note: these are the rows of the last version that was prepared. Changes of later epochs are still on
their way from the operator to disk, so it must hold them until `saved_epoch` has reached theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from epochal.state.disk.disk_version import DiskVersion
from epochal.state.disk.local_database import LocalDatabase
from epochal.state.rows.values import Row
from epochal.state.store.contract import RowForm


@dataclass(frozen=True, slots=True, eq=False)
class DiskRows:
    """The newest rows of a store."""

    database: LocalDatabase
    newest: Callable[[], DiskVersion]
    form: RowForm
    saved_epoch: Callable[[], int]
    """The last epoch whose changes are on disk."""
    cache_bytes: int
    """How much memory the operator may use for rows that it has used lately."""

    def __iter__(self) -> Iterator[tuple[Row, Any]]:
        form = self.form
        for key, value in self._entries():
            yield form.decode_key(key), form.decode_value(key, value)

    def all_keys(self) -> Iterator[Row]:
        """All keys."""
        return (self.form.decode_key(key) for key, _ in self._entries())

    def get(self, key: Row) -> Any | None:
        """The value of a key, or None."""
        encoded = self.form.key(key)
        value = self.newest().table.get(encoded)
        return None if value is None else self.form.decode_value(encoded, value)

    def having(self, prefix: Row) -> list[tuple[Row, Any]]:
        """The rows whose keys start with these columns."""
        form = self.form
        entries = self.newest().table.scan(form.prefix(prefix))
        return [(form.decode_key(key), form.decode_value(key, value)) for key, value in entries]

    def stop_counting(self) -> int:
        """The number of rows, which the operator counts from now on."""
        if self.form.start:
            return sum(1 for _ in self._entries())
        return self.newest().home.stop_counting()

    def _entries(self) -> Iterator[tuple[bytes, bytes]]:
        version, start = self.newest(), self.form.start
        return version.table.scan(start) if start else version.items()
