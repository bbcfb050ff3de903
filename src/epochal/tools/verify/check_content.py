"""Reads every state file of a checkpoint once and checks what is in it.

Beside the rules of the names (`verify_state`): the bytes of deltas and snapshots, Spark's and
Hadoop's checksums, every row against the schema, every key against its partition, and, when asked
to go deep, every snapshot against the replay of the deltas below it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

import google_crc32c

from epochal.errors import EpochalError, StateFormatError
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
from epochal.tools.verify.check_files import crc_agrees
from epochal.tools.verify.findings import Finding, finding

Tick = Callable[[], None]


@dataclass(frozen=True, slots=True)
class ContentSettings:
    """What the offset log says about how state files are written, and how far to look."""

    codec: str
    row_checksums: bool
    partitions: Mapping[int, int]
    """Version to number of partitions, as far as the logs reach."""
    deep: bool


class ContentCheck:
    """Goes through stores one by one and collects what it finds."""

    def __init__(self, files: Files, settings: ContentSettings, tick: Tick) -> None:
        self._files, self._settings, self._tick = files, settings, tick
        # lz4 files carry checksums of their own; reading Hadoop's too would double the work.
        self._with_crc = settings.deep or settings.codec != "lz4"
        self.findings: list[Finding] = []

    def store(self, store: StoreListing, checker: RowChecker | None) -> None:
        """Check every delta and snapshot of one store, in the order of versions."""
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
                held = {key: value for key, value in snapshot if value is not None}
                if at == version and held != state:
                    self.findings.append(_disagreement(store, version, held, state))
                state, at = held, version

    def _records(
        self, store: StoreListing, name: str, version: int, checker: RowChecker | None
    ) -> list[Record] | None:
        """The records of one file; None, after noting why, if they cannot be trusted."""
        self._tick()
        path = f"{store.path}/{name}"
        data = read_bytes(self._files, path)
        if isinstance(data, EpochalError):
            self.findings.append(finding("FILE_UNREADABLE", path, str(data)))
            return None
        try:
            records = self._checked(data, path, store.partition, version, checker)
        except StateFormatError as error:
            self.findings.append(_broken(path, error))
            return None
        self.checksums(store, name, data)
        return records

    def _checked(
        self, data: bytes, path: str, partition: int, version: int, checker: RowChecker | None
    ) -> list[Record]:
        settings = self._settings
        raw = unpack(data, settings.codec, path)
        form = {"is_snapshot": path.endswith("snapshot"), "row_checksums": settings.row_checksums}
        count = settings.partitions.get(version)
        misplaced = 0
        if len(raw) < LARGE_BYTES:
            records = scan_small(raw, **form, source=path)
            if records and checker is not None:
                misplaced = checker.check(records, path, partition, count)
        else:
            from epochal.tools.verify.check_columns import as_list, check_large, scan_large

            columns = scan_large(raw, **form, source=path)
            records = as_list(columns) if settings.deep else []
            if checker is not None:
                misplaced = check_large(checker, columns, path, partition, count)
        if misplaced:
            self.findings.append(
                finding(
                    "STATE_KEY_WRONG_PARTITION",
                    path,
                    f"{misplaced} keys belong in another of the {count} partitions than "
                    f"{partition}",
                )
            )
        return records

    def checksums(
        self, store: StoreListing, name: str, data: bytes, *, checked: bool = False
    ) -> None:
        """Hold a file that was read against the checksums beside it.

        `checked`: whether Spark reads it through the file system that checks Hadoop's.
        """
        path = f"{store.path}/{name}"
        if f"{name}.crc" in store.files:
            text = read_bytes(self._files, f"{path}.crc")
            if isinstance(text, bytes):
                self.findings.extend(spark_checksum_rules(path, data, text))
                if self._settings.deep:
                    self.hadoop_checksum(store.path, store.files, f"{name}.crc", text, "CRC_STALE")
        if self._with_crc or checked:
            code = "CRC_REFUSED" if checked else "CRC_STALE"
            self.hadoop_checksum(store.path, store.files, name, data, code)

    def hadoop_checksum(
        self, folder: str, names: Collection[str], name: str, data: bytes, code: str
    ) -> None:
        """Hold a file against its hidden checksum, if there is one among `names`."""
        crc_name = f".{name}.crc"
        if crc_name not in names:
            return
        crc = read_bytes(self._files, f"{folder}/{crc_name}")
        if isinstance(crc, bytes) and crc_agrees(data, crc) is False:
            self.findings.append(
                finding(
                    code,
                    f"{folder}/{name}",
                    f"its {len(data)} bytes are not those that {crc_name} was written for",
                )
            )


def _broken(path: str, error: StateFormatError) -> Finding:
    if error.condition == ROW_CHECKSUM_CONDITION:
        return finding("STATE_ROW_CHECKSUM", path, f"byte {error.offset}: {error.reason}")
    where = error.source.removeprefix(path).removeprefix(", ")
    if where:  # a row inside the file
        return finding("STATE_ROW_INVALID", path, f"{where}, byte {error.offset}: {error.reason}")
    return finding("STATE_FILE_UNREADABLE", path, f"byte {error.offset}: {error.reason}")


def _disagreement(
    store: StoreListing, version: int, held: dict[bytes, bytes], replayed: dict[bytes, bytes]
) -> Finding:
    only_held = len(held.keys() - replayed.keys())
    only_replayed = len(replayed.keys() - held.keys())
    other = sum(replayed[key] != value for key, value in held.items() if key in replayed)
    return finding(
        "STATE_SNAPSHOT_DISAGREES",
        f"{store.path}/{store.snapshots[version]}",
        f"against the replay of its deltas it has {only_held} keys too many, {only_replayed} too "
        f"few, and {other} with another value",
    )


def spark_checksum_rules(path: str, data: bytes, text: bytes) -> Iterator[Finding]:
    """A state file against the JSON checksum that Spark 4.1 and later keep beside it."""
    try:
        held = json.loads(text)
        algorithm, value, size = held["algorithm"], held["value"], held["mainFileSize"]
    except (ValueError, KeyError, TypeError, RecursionError):
        yield finding("CHECKSUM_UNREADABLE", f"{path}.crc", "it is not a checksum in JSON")
        return
    if algorithm != "CRC32C":
        yield finding("CHECKSUM_UNREADABLE", f"{path}.crc", f"algorithm {algorithm!r:.40}")
        return
    computed = google_crc32c.value(data)
    signed = computed - (1 << 32) if computed >> 31 else computed
    if (signed, len(data)) != (value, size):
        yield finding(
            "CHECKSUM_MISMATCH",
            path,
            f"it has {len(data)} bytes of CRC-32C {signed}; {path.rpartition('/')[2]}.crc says "
            f"{size!r:.40} bytes of {value!r:.40}",
        )
