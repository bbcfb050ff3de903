"""Checks a large state file in columns, with the same results as `check_bytes`.

Import this module only when it is needed: it imports numpy and pyarrow, which takes longer than
checking a thousand small files row by row.
"""

from __future__ import annotations

import numpy as np

from epochal.errors import StateFormatError
from epochal.state.files.delta_snapshot import FileKind, Records, scan_records
from epochal.state.files.merge import Rows
from epochal.state.files.partitioning import places_of
from epochal.state.rows.byte_spans import Spans
from epochal.state.rows.column_decoder import validate_rows
from epochal.state.rows.types import StructType
from epochal.tools.verify.check_bytes import NO_VALUE, Record, RowChecker


def scan_large(data: bytes, *, is_snapshot: bool, row_checksums: bool, source: str) -> Records:
    """Find the records of an uncompressed file."""
    kind = FileKind.SNAPSHOT if is_snapshot else FileKind.DELTA
    return scan_records(data, kind, row_checksums=row_checksums, source=source)


def as_list(records: Records) -> list[Record]:
    """Convert the records to a list of pairs."""
    return list(records.to_list())


def check_large(
    checker: RowChecker, records: Records, source: str, partition: int, count: int | None
) -> int:
    """Do what `RowChecker.check` does: raise StateFormatError for the first bad row and return the
    number of misplaced keys."""
    values = records.values.take(~records.deleted)
    validate_rows(records.keys, checker.key, source=f"{source}, key")
    try:
        validate_rows(values, checker.value, source=f"{source}, value")
    except StateFormatError:
        if not _without_values(values):
            raise
    if count is None or not checker.placing_columns:
        return 0
    placing = StructType(checker.key.fields[: checker.placing_columns])
    rows = Rows(records.keys, records.values, source)
    homes = places_of(rows, checker.key, placing, count)
    return int(np.count_nonzero(homes != partition))


def _without_values(values: Spans) -> bool:
    return set(values) == {NO_VALUE}
