"""Reads every state file once and checks its content.

It checks the bytes of deltas and snapshots, Spark's and Hadoop's checksums, every row against the
schema, and every key against its partition. It compares a snapshot with the replay of the deltas
before it if an earlier one has the same bytes although a delta since has changed something; in deep
mode, every snapshot. `check_state` has the rules about file names.

A checkpoint has tens of thousands of state files, most of them tiny. So each row first goes through
a fast check that is built once per schema and accepts only rows that are certainly valid. All other
rows go to the full validation in `state.rows`. Files above `LARGE_BYTES` are checked in columns.

The partition of a key is Spark's Murmur3 hash of the partitioning columns, chained with seed 42,
modulo the number of partitions. A null leaves the hash unchanged. `state.rows.murmur3` computes the
same for whole columns, but importing it (and numpy) takes longer than checking a few keys here.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import google_crc32c

from epochal.errors import StateFormatError, StorageError
from epochal.files import Bounds, Files
from epochal.state.files.codecs import decompress
from epochal.state.rows.types import Kind, Layout, StructType, bitset_bytes, padded
from epochal.state.rows.unsafe_row import decode_row, minimal_bytes, unscaled_of, validate_row
from epochal.tools.inspect.listing import read_bytes
from epochal.tools.inspect.state_listing import StoreListing
from epochal.tools.verify.check_files import stale_rules
from epochal.tools.verify.findings import Finding, finding
from epochal.wording import counted

Tick = Callable[[], None]

LARGE_BYTES = 1 << 20
DISAGREES = "STATE_SNAPSHOT_DISAGREES"
ROW_CHECKSUM_CONDITION = "STATE_STORE_ROW_CHECKSUM_VERIFICATION_FAILED"

Record = tuple[bytes, bytes | None]
"""A key and its value; the value of a deleted key is None."""


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
        at = changes = 0
        changes_before: dict[int, int] = {}
        may_have_copies = False
        for version in store.versions:
            delta = snapshot = None
            if version in store.deltas:
                delta = self._records(store, store.deltas[version], version, checker)[0]
                changes += delta is None or delta != []
            if version in store.snapshots:
                name = store.snapshots[version]
                snapshot, digest = self._records(store, name, version, checker)
                may_have_copies |= changes_before.setdefault(digest, changes) < changes
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
        if may_have_copies and not self._settings.deep:
            replay = ContentCheck(self._files, replace(self._settings, deep=True), no_tick)
            replay.store(store, None)
            self.findings += [each for each in replay.findings if each.code == DISAGREES]

    def _records(
        self, store: StoreListing, name: str, version: int, checker: RowChecker | None
    ) -> tuple[list[Record] | None, int]:
        """Return the records of one file and the CRC of its bytes.

        The records are None, with a finding, if the file is damaged, and if it is too large.
        """
        path = f"{store.path}/{name}"
        data = self.read(path)
        if data is None:
            return None, 0
        digest = google_crc32c.value(data) if name.endswith(".snapshot") else 0
        try:
            records = self._checked(data, path, store.partition, version, checker)
        except StateFormatError as error:
            code, where = _broken(path, error)
            self.report(code, path, f"{where}byte {error.offset}: {error.reason}")
            return None, digest
        except StorageError as error:
            self.report("FILE_UNREADABLE", path, error.reason)
            return None, digest
        self.checksums(store, name, data)
        return records, digest

    def _checked(
        self, data: bytes, path: str, partition: int, version: int, checker: RowChecker | None
    ) -> list[Record] | None:
        settings = self._settings
        raw = unpack(data, settings.codec, path, self._files.bounds)
        form = {"is_snapshot": path.endswith("snapshot"), "row_checksums": settings.row_checksums}
        count = settings.partitions.get(version)
        misplaced = 0
        records: list[Record] | None
        if len(raw) < LARGE_BYTES:
            records = scan_small(raw, **form, source=path)
            if records and checker is not None:
                misplaced = checker.check(records, path, partition, count)
        else:
            from epochal.tools.verify.check_columns import check_large, scan_large

            columns = scan_large(raw, **form, source=path)
            records = list(columns.to_list()) if settings.deep else None
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


_INT = struct.Struct(">i")


def scan_small(data: bytes, *, is_snapshot: bool, row_checksums: bool, source: str) -> list[Record]:
    """Parse the records of an uncompressed file; StateFormatError where they break off."""
    records: list[Record] = []
    at = 0
    read_int = _INT.unpack_from
    try:
        while True:
            start = at
            (key_bytes,) = read_int(data, at)
            if key_bytes == -1:
                return records
            key_at = at + 4
            value_at = key_at + key_bytes + 4
            if key_bytes < 0:
                raise StateFormatError(source, at, f"key size cannot be {key_bytes}")
            (value_bytes,) = read_int(data, value_at - 4)
            at = value_at + max(value_bytes, 0)
            if at > len(data):
                raise StateFormatError(source, start, "the file ends inside this record")
            if value_bytes < 0 and is_snapshot:
                raise StateFormatError(source, start, f"value size cannot be {value_bytes}")
            key = data[key_at : value_at - 4]
            value = data[value_at:at] if value_bytes >= 0 else None
            if row_checksums:
                key, value = _without_checksum(key, value, source, start)
            # Rows have a multiple of eight bytes. Spark before 2.3 appended four bytes to some
            # values; Spark drops them, and so does this line.
            records.append((key, value if value is None else value[: len(value) & ~7]))
    except struct.error:
        raise StateFormatError(source, at, "the file ends without an end mark") from None


def _without_checksum(key: bytes, value: bytes | None, source: str, at: int) -> Record:
    # The checksum stands before the value, or before the key of a deletion, which has no value.
    prefixed = key if value is None else value
    stored, rest = int.from_bytes(prefixed[:4], "little"), prefixed[4:]
    record: Record = (rest, None) if value is None else (key, rest)
    computed = google_crc32c.extend(google_crc32c.value(record[0]), record[1] or b"")
    if len(prefixed) < 4 or stored != computed:
        raise StateFormatError(
            source,
            at,
            f"the stored row checksum is {stored:#010x}, but the row's checksum is "
            f"{computed:#010x}",
            ROW_CHECKSUM_CONDITION,
        )
    return record


NO_VALUE = bytes([1, *[0] * 15])
"""A row with one null, which deduplication stores as value. Spark 3.2 and 3.3 recorded the schema
of the input for it, which such a row does not fit. Later releases accept it, and so does this."""

SureCheck = Callable[[bytes], bool]

_ANY_WORD = frozenset({Kind.LONG, Kind.DOUBLE})
_POINTED = frozenset({Kind.STRING, Kind.BINARY})


def sure_check(schema: StructType) -> SureCheck:
    """Build a fast check for the rows of one schema.

    True means that a row is valid. False means only that it needs the full validation.
    """
    kinds = [child.kind for child in schema.layout.children]
    if not kinds:
        return lambda row: not row
    if not set(kinds) <= _ANY_WORD | _POINTED:
        return lambda row: False
    bits = bitset_bytes(len(kinds))
    fixed = bits + 8 * len(kinds)
    no_nulls = bytes(bits)
    words = struct.Struct(f"<{len(kinds)}Q")
    pointed = [index for index, kind in enumerate(kinds) if kind in _POINTED]
    text = [kinds[index] is Kind.STRING for index in pointed]

    def check(row: bytes) -> bool:
        if len(row) < fixed or not row.startswith(no_nulls):
            return False
        if not pointed:
            return len(row) == fixed
        found = words.unpack_from(row, bits)
        cursor = fixed
        for index, is_text in zip(pointed, text, strict=True):
            offset, size = found[index] >> 32, found[index] & 0xFFFFFFFF
            end = offset + size
            if offset != cursor or end > len(row):
                return False
            cursor += padded(size)
            if is_text and not row[offset:end].isascii():
                return False
            if row[end:cursor].strip(b"\0"):
                return False
        return cursor == len(row)

    return check


class RowChecker:
    """Checks the keys and values of one store. It remembers valid keys, since most occur often."""

    def __init__(self, key: StructType, value: StructType, placing_columns: int) -> None:
        self.key, self.value, self.placing_columns = key, value, placing_columns
        self._sure_key, self._sure_value = sure_check(key), sure_check(value)
        self._right: dict[tuple[int, int | None], set[bytes]] = {}

    def check(self, records: list[Record], source: str, partition: int, count: int | None) -> int:
        """Raise StateFormatError for the first bad row; return the number of misplaced keys."""
        right = self._right.setdefault((partition, count), set())
        sure_value = self._sure_value
        misplaced = 0
        for position, (key, value) in enumerate(records):
            if key not in right:
                if not self._sure_key(key):
                    validate_row(key, self.key, source=f"{source}, key {position}")
                if self._is_misplaced(key, partition, count):
                    misplaced += 1
                else:
                    right.add(key)
            if value is not None and not sure_value(value) and value != NO_VALUE:
                validate_row(value, self.value, source=f"{source}, value {position}")
        return misplaced

    def _is_misplaced(self, key: bytes, partition: int, count: int | None) -> bool:
        if count is None or not self.placing_columns:
            return False
        home = partition_of_key(key, self.key, self.placing_columns, count)
        return home is not None and home != partition


EMPTY_LZ4 = bytes.fromhex(
    "4c5a34426c6f636b150400000004000000db804d08ffffffff4c5a34426c6f636b15000000000000000000000000"
)
"""The lz4 delta without changes that Spark writes. Most deltas of most queries are like this."""
END_MARK = b"\xff\xff\xff\xff"


def unpack(data: bytes, codec: str, source: str, bounds: Bounds) -> bytes:
    """Decompress a file; StateFormatError if it is damaged."""
    if data == EMPTY_LZ4 and codec == "lz4":
        return END_MARK
    return decompress(data, codec, source=source, bounds=bounds)


SEED = 42
_MASK = 0xFFFFFFFF
_INT_KINDS = frozenset({Kind.BOOLEAN, Kind.BYTE, Kind.SHORT, Kind.INT})
_HASHED_KINDS = _INT_KINDS | {
    Kind.VOID,
    Kind.LONG,
    Kind.FLOAT,
    Kind.DOUBLE,
    Kind.SMALL_DECIMAL,
    Kind.BIG_DECIMAL,
    Kind.STRING,
    Kind.BINARY,
}


def partition_of_key(key: bytes, schema: StructType, columns: int, partitions: int) -> int | None:
    """Hash the first `columns` of a key to its partition.

    None if one of their types has no hash: Spark cannot group by such a column.
    """
    placing = schema.layout.children[:columns]
    if not all(map(_has_hash, placing)):
        return None
    state = SEED
    for value, layout in zip(decode_row(key, schema), placing, strict=False):
        state = _hash(value, layout, state)
    signed = state - (1 << 32) if state >> 31 else state
    return signed % partitions


def _has_hash(layout: Layout) -> bool:
    if layout.kind in (Kind.STRUCT, Kind.ARRAY):
        return all(map(_has_hash, layout.children))
    return layout.kind in _HASHED_KINDS


def _hash(value: Any, layout: Layout, state: int) -> int:
    kind = layout.kind
    if value is None:
        return state
    if kind in _INT_KINDS:
        return _finish(_mix(state, int(value) & _MASK), 4)
    match kind:
        case Kind.LONG:
            return _long(value, state)
        case Kind.FLOAT:
            bits = int.from_bytes(struct.pack("<f", value + 0.0), "little")
            return _finish(_mix(state, bits), 4)
        case Kind.DOUBLE:
            return _long(int.from_bytes(struct.pack("<d", value + 0.0), "little"), state)
        case Kind.SMALL_DECIMAL | Kind.BIG_DECIMAL:
            unscaled = unscaled_of(value, layout.precision, layout.scale)
            assert unscaled is not None, "a stored decimal fits its own type"
            if kind is Kind.SMALL_DECIMAL:
                return _long(unscaled, state)
            return _bytes(minimal_bytes(unscaled), state)
        case Kind.STRING:
            return _bytes(value.encode(), state)
        case Kind.BINARY:
            return _bytes(value, state)
        case Kind.STRUCT:
            for each, child in zip(value, layout.children, strict=True):
                state = _hash(each, child, state)
            return state
        case Kind.ARRAY:
            for each in value:
                state = _hash(each, layout.children[0], state)
            return state
    raise AssertionError(f"{kind} has no hash")


def _long(value: int, state: int) -> int:
    return _finish(_mix(_mix(state, value & _MASK), value >> 32 & _MASK), 8)


def _bytes(data: bytes, state: int) -> int:
    whole = len(data) & ~3
    for (word,) in struct.iter_unpack("<I", data[:whole]):
        state = _mix(state, word)
    for byte in data[whole:]:
        # Standard Murmur3 mixes the last 1 to 3 bytes together. Spark mixes each one separately,
        # sign-extended to 32 bits.
        state = _mix(state, byte if byte < 0x80 else byte | 0xFFFFFF00)
    return _finish(state, len(data))


def _mix(state: int, word: int) -> int:
    word = word * 0xCC9E2D51 & _MASK
    word = (word << 15 | word >> 17) & _MASK
    state ^= word * 0x1B873593 & _MASK
    state = (state << 13 | state >> 19) & _MASK
    return (state * 5 + 0xE6546B64) & _MASK


def _finish(state: int, length: int) -> int:
    state ^= length
    state = (state ^ state >> 16) * 0x85EBCA6B & _MASK
    state = (state ^ state >> 13) * 0xC2B2AE35 & _MASK
    return state ^ state >> 16
