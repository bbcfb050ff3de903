"""Reads every state file once and checks its content.

It checks the bytes of deltas and snapshots, Spark's and Hadoop's checksums, every row against the
schema, and every key against its partition. In deep mode it also compares every snapshot with the
replay of the deltas before it. `check_state` has the rules about file names.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import google_crc32c

from epochal.errors import StateFormatError, StorageError
from epochal.files import Files
from epochal.tools.inspect.listing import read_bytes
from epochal.tools.inspect.state_listing import StoreListing
from epochal.tools.verify.check_bytes import (
    LARGE_BYTES,
    ROW_CHECKSUM_CONDITION,
    Record,
    RowChecker,
    scan_small,
    unpack,
)
from epochal.tools.verify.check_files import stale_rules
from epochal.tools.verify.findings import Finding, finding
from epochal.wording import counted

Tick = Callable[[], None]


def no_tick() -> None:
    """Report no progress."""


@dataclass(frozen=True, slots=True)
class ContentSettings:
    """The format of the state files, taken from the offset log, and how much to check."""

    codec: str
    row_checksums: bool
    partitions: Mapping[int, int]
    """The number of partitions of each version that the logs still cover."""
    deep: bool


class ContentCheck:
    """Checks stores one by one and collects the findings."""

    def __init__(self, files: Files, settings: ContentSettings, tick: Tick) -> None:
        self._files, self._settings, self._tick = files, settings, tick
        # lz4 files contain checksums. Reading Hadoop's too would double the number of reads.
        self._with_crc = settings.deep or settings.codec != "lz4"
        self.findings: list[Finding] = []

    def report(self, code: str, path: str, message: str) -> None:
        self.findings.append(finding(code, path, message))

    def read(self, path: str) -> bytes | None:
        """Read the next file; None, with a finding, if that fails."""
        self._tick()
        data = read_bytes(self._files, path, large=True)
        if isinstance(data, bytes):
            return data
        self.report("FILE_UNREADABLE", path, str(data))
        return None

    def store(self, store: StoreListing, checker: RowChecker | None) -> None:
        """Check every delta and snapshot of one store, in the order of versions."""
        # The replay. It goes on only while no delta is missing, and starts again at each snapshot.
        state: dict[bytes, bytes] = {}
        at = 0
        for version in store.versions:
            delta = snapshot = None
            if version in store.deltas:
                delta = self._records(store, store.deltas[version], version, checker)
            if version in store.snapshots:
                snapshot = self._records(store, store.snapshots[version], version, checker)
            if not self._settings.deep:
                continue
            if delta is not None and at == version - 1:
                at = version
                for key, value in delta:
                    if value is None:
                        state.pop(key, None)
                    else:
                        state[key] = value
            if snapshot is not None:
                stored = {key: value for key, value in snapshot if value is not None}
                if at == version and stored != state:
                    from epochal.tools.verify.check_columns import disagreement

                    path = f"{store.path}/{store.snapshots[version]}"
                    self.findings.extend(disagreement(path, stored, state))
                state, at = stored, version

    def _records(
        self, store: StoreListing, name: str, version: int, checker: RowChecker | None
    ) -> list[Record] | None:
        """Return the records of one file; None, with a finding, if the file is damaged."""
        path = f"{store.path}/{name}"
        data = self.read(path)
        if data is None:
            return None
        try:
            records = self._checked(data, path, store.partition, version, checker)
        except StateFormatError as error:
            code, where = _broken(path, error)
            self.report(code, path, f"{where}byte {error.offset}: {error.reason}")
            return None
        except StorageError as error:
            self.report("FILE_UNREADABLE", path, error.reason)
            return None
        self.checksums(store, name, data)
        return records

    def _checked(
        self, data: bytes, path: str, partition: int, version: int, checker: RowChecker | None
    ) -> list[Record]:
        settings = self._settings
        raw = unpack(data, settings.codec, path, self._files.bounds)
        form = {"is_snapshot": path.endswith("snapshot"), "row_checksums": settings.row_checksums}
        count = settings.partitions.get(version)
        misplaced = 0
        if len(raw) < LARGE_BYTES:
            records = scan_small(raw, **form, source=path)
            if records and checker is not None:
                misplaced = checker.check(records, path, partition, count)
        else:
            from epochal.tools.verify.check_columns import check_large, scan_large

            columns = scan_large(raw, **form, source=path)
            records = list(columns.to_list()) if settings.deep else []
            if checker is not None:
                misplaced = check_large(checker, columns, path, partition, count)
        if misplaced:
            message = f"partition {partition} of {count} has {counted(misplaced, 'key')} of others"
            self.report("STATE_KEY_WRONG_PARTITION", path, message)
        return records

    def checksums(
        self, store: StoreListing, name: str, data: bytes, *, checked: bool = False
    ) -> None:
        """Compare the content of a file with its checksum files.

        `checked`: whether Spark reads this file through Hadoop's checksumming file system.
        """
        path, hidden = f"{store.path}/{name}", (self._files, store.path, store.files)
        if f"{name}.crc" in store.files:
            text = read_bytes(self._files, f"{path}.crc")
            if isinstance(text, bytes):
                self.findings.extend(spark_checksum_rules(path, data, text))
                if self._settings.deep:
                    self.findings.extend(stale_rules(*hidden, {f"{name}.crc": text}, "CRC_STALE"))
        if self._with_crc or checked:
            code = "CRC_REFUSED" if checked else "CRC_STALE"
            self.findings.extend(stale_rules(*hidden, {name: data}, code))


def _broken(path: str, error: StateFormatError) -> tuple[str, str]:
    """The code of an error, and the row inside the file that it names, if any."""
    if error.condition == ROW_CHECKSUM_CONDITION:
        return "STATE_ROW_CHECKSUM", ""
    where = error.source.removeprefix(path).removeprefix(", ")
    return ("STATE_ROW_INVALID", f"{where}, ") if where else ("STATE_FILE_UNREADABLE", "")


def spark_checksum_rules(path: str, data: bytes, text: bytes) -> Iterator[Finding]:
    """Compare a state file with the JSON checksum file that Spark 4.1 and later write."""
    try:
        expected = json.loads(text)
        algorithm, value, size = expected["algorithm"], expected["value"], expected["mainFileSize"]
    except (ValueError, KeyError, TypeError, RecursionError):
        yield finding("CHECKSUM_UNREADABLE", f"{path}.crc", "it is not a checksum in JSON")
        return
    if algorithm != "CRC32C":
        yield finding(
            "CHECKSUM_UNREADABLE", f"{path}.crc", f"its algorithm is {algorithm!r:.40}, not CRC32C"
        )
        return
    computed = google_crc32c.value(data)
    signed = computed - (1 << 32) if computed >> 31 else computed  # Spark writes a Java int
    if (signed, len(data)) != (value, size):
        yield finding(
            "CHECKSUM_MISMATCH",
            path,
            f"it has {len(data)} bytes and CRC-32C {signed}; {path.rpartition('/')[2]}.crc expects "
            f"{size!r:.40} bytes and {value!r:.40}",
        )
