"""Reads a version of a RocksDB-backed state store: a snapshot zip, its SST files, then changelogs.

The checkpoint is never changed: the files of a snapshot are copied to a temporary directory and
opened there by `rocksdict` (extra `rocksdb`). A version without a snapshot below it consists of
changelogs alone and needs no RocksDB.

Note: with checkpoint format 2 there can be several files of one version, left by tasks that were
retried, and the newest is not necessarily the right one. Only the id in the commit log identifies
the right file, and only the lineage inside the changelogs identifies the files before it.
"""

from __future__ import annotations

import io
import re
import tempfile
import zipfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from epochal.errors import StateFormatError, StateLoadError
from epochal.files import Files, Room, join_url
from epochal.state.files.chain import MISSING_SNAPSHOT, files_to_load
from epochal.state.files.codecs import compress, decompress
from epochal.state.files.merge import Rows
from epochal.state.files.rocksdb_changelog import (
    INVALID_LINEAGE,
    Changelog,
    LineageItem,
    Operation,
    encode_changelog,
    parse_changelog,
    read_lineage,
)
from epochal.state.files.rocksdb_entries import ValueWrapper
from epochal.state.files.rocksdb_family import FAMILY_BYTES, Family, family_prefix
from epochal.state.files.rocksdb_snapshot import (
    BROKEN_ZIP,
    METADATA_ENTRY,
    SnapshotMetadata,
    describe_entries,
    encode_snapshot,
    is_read,
    parse_snapshot_metadata,
    read_database,
    unpack_part,
)
from epochal.state.rows.byte_spans import spans_of
from epochal.state.store.contract import Edit, FileSettings, Selection
from epochal.state.store.versions import Draft, FrozenVersion

MISSING_CHANGELOG = "CANNOT_LOAD_STATE_STORE.CANNOT_READ_STREAMING_STATE_FILE"
UNEXPECTED_VERSION = "CANNOT_LOAD_STATE_STORE.UNEXPECTED_VERSION"
UNEXPECTED_SIZE = "CANNOT_LOAD_STATE_STORE.UNEXPECTED_FILE_SIZE"

EVERYTHING = Selection()
_NAME = re.compile(r"(\d+)(?:_([0-9A-Za-z-]+))?\.(zip|changelog)")


@dataclass(frozen=True, slots=True)
class RocksPlan:
    """The files that make a version: at most one zip, then changelogs in order."""

    snapshot: LineageItem | None
    changelogs: tuple[LineageItem, ...]


@dataclass(frozen=True, slots=True)
class RocksContent:
    """Everything in a version, as RocksDB keeps it: keys start with their family's number."""

    entries: dict[bytes, bytes]
    families: Mapping[str, int] = field(default_factory=dict)
    highest_family: int = 0
    """The highest number that a family ever had."""
    internal: Mapping[str, bool] = field(default_factory=dict)
    """Which families are Spark's own and not a user's."""

    def __len__(self) -> int:
        return len(self.entries)

    def family(self, name: str | None) -> Iterator[tuple[bytes, bytes]]:
        """Keys and values of one column family; `None` means a store without families."""
        if name is None:
            yield from self.entries.items()
            return
        if name not in self.families:
            return
        prefix = family_prefix(self.families[name])
        for key, value in self.entries.items():
            if key[:FAMILY_BYTES] == prefix:
                yield key, value

    def parts(self, family: str | None, source: str) -> list[Rows]:
        entries = list(self.family(family))
        keys, values = [key for key, _ in entries], [value for _, value in entries]
        return [Rows(spans_of(keys), spans_of(values), source)] if entries else []

    def find(self, keys: Collection[bytes], source: str) -> Iterator[tuple[bytes, bytes, str]]:
        for key in keys:
            if key in self.entries:
                yield key, self.entries[key], source

    def with_rows(self, parts: Sequence[Rows], highest_family: int = 0) -> RocksContent:
        highest = max(self.highest_family, highest_family)
        return replace(self, entries=_entries_of(parts), highest_family=highest)

    def rewritten(self, parts: Sequence[Rows]) -> RocksContent:
        return replace(self, entries={**self.entries, **_entries_of(parts)})

    def changes(
        self, family: Family, edits: Sequence[Edit], form: ValueWrapper
    ) -> Iterator[tuple[bytes, bytes | None]]:
        return family.changes(
            [(key, value) for key, value in edits if value is not None],
            [key for key, value in edits if value is None],
            lambda name: self.prefix_of(name if self.families else None),
            self.entries.get,
            form,
        )

    def prefix_of(self, family: str | None) -> bytes:
        """What the keys of a family start with; nothing in a store without families."""
        return b"" if family is None else family_prefix(self.families[family])

    def encode(
        self, item: LineageItem, settings: FileSettings, table_format: int
    ) -> dict[str, bytes]:
        metadata = describe_entries(self.entries, self.families, self.highest_family, self.internal)
        # A database is written fastest in the order of its keys.
        entries = sorted(self.entries.items())
        return encode_snapshot(file_name(item, "zip"), entries, metadata, table_format)

    def encode_changes(
        self,
        changes: Iterable[tuple[bytes, bytes | None]],
        item: LineageItem,
        lineage: Sequence[LineageItem] | None,
        settings: FileSettings,
    ) -> tuple[str, bytes]:
        # Spark replays changelogs above the newest snapshot even if the query does not write any.
        # Values have their checksums already. The key of a removed entry gets its own here.
        record = settings.form.record
        records = [record(key, None) if value is None else (key, value) for key, value in changes]
        raw = encode_changelog(records, lineage, of_families=bool(self.families))
        return file_name(item, "changelog"), compress(raw, settings.codec)


def _entries_of(parts: Iterable[Rows]) -> dict[bytes, bytes]:
    return {key: value for rows in parts for key, value in zip(rows.keys, rows.values, strict=True)}


def file_name(item: LineageItem, suffix: str) -> str:
    """`VERSION.suffix`, or `VERSION_ID.suffix` if the checkpoint uses unique ids."""
    stem = f"{item.version}_{item.unique_id}" if item.unique_id else str(item.version)
    return f"{stem}.{suffix}"


def parse_name(name: str) -> tuple[LineageItem, str] | None:
    """The version, id and kind (`zip` or `changelog`) in a file name; None for other files."""
    parsed = _NAME.fullmatch(name)
    if parsed is None:
        return None
    return LineageItem(int(parsed[1]), parsed[2] or ""), parsed[3]


class RocksDirectory:
    """The directory of one store. Read-only."""

    def __init__(self, files: Files, settings: FileSettings) -> None:
        self._files, self._settings = files, settings
        listed = (parse_name(info.name) for info in files.list() if not info.is_dir)
        names = [item for item in listed if item is not None]
        self.snapshots = frozenset(item for item, kind in names if kind == "zip")
        self.changelogs = frozenset(item for item, kind in names if kind == "changelog")

    def plan(self, version: int, unique_id: str = "") -> RocksPlan:
        """Which files make `version`; a StateLoadError names the first that is missing."""
        if version < 0:
            reason = f"the version cannot be {version}"
            raise StateLoadError(self._files.url, reason, UNEXPECTED_VERSION)
        if version == 0:
            return RocksPlan(None, ())
        target = LineageItem(version, unique_id)
        history = self._history(target)
        chain = files_to_load(
            version,
            (item.version for item in history if item in self.snapshots),
            (item.version for item in history if item in self.changelogs),
        )
        above = tuple(item for item in history if item.version > chain.snapshot)
        # A damaged lineage can skip a version, or name one twice. Then no file is missing.
        if unique_id and not _is_gapless(above, chain.deltas):
            named = ", ".join(str(item.version) for item in above) or "none"
            raise StateLoadError(
                self._files.url,
                f"version {version} needs the changelogs {chain.snapshot + 1} to {version}, but "
                f"its lineage lists {named}",
                INVALID_LINEAGE,
            )
        if chain.first_missing is not None:
            ids = {item.version: item.unique_id for item in above}
            raise self._missing(LineageItem(chain.first_missing, ids.get(chain.first_missing, "")))
        base = next((i for i in history if chain.snapshot and i.version == chain.snapshot), None)
        return RocksPlan(base, above)

    def load(
        self, version: int, unique_id: str = "", wanted: Selection = EVERYTHING
    ) -> RocksContent:
        """The content of a version; of a selection with a prefix only the keys that begin so."""
        plan = self.plan(version, unique_id)
        entries: dict[bytes, bytes] = {}
        metadata = SnapshotMetadata((), {}, 0)
        if plan.snapshot is not None:
            delimiter = self._settings.form.delimiter
            metadata, entries = read_snapshot(self._files, plan.snapshot, delimiter, wanted)
        draft = FrozenVersion.of(entries).draft()
        for item in plan.changelogs:
            source = join_url(self._files.url, file_name(item, "changelog"))
            replay(self.changelog(item), draft, self._settings.form, source)
        # Only snapshots record families. Spark writes one whenever families change, and so do we.
        families = metadata.families
        highest = max(metadata.highest_family, *families.values(), 0)
        start = _start_of(wanted, families)
        selected = {key: value for key, value in draft.items() if key.startswith(start)}
        return RocksContent(selected, families, highest, metadata.internal)

    def families(self, version: int, unique_id: str = "") -> Mapping[str, int]:
        """The column families of a version, without loading it."""
        plan = self.plan(version, unique_id)
        return read_metadata(self._files, plan.snapshot).families if plan.snapshot else {}

    def changelog(self, item: LineageItem) -> Changelog:
        name = file_name(item, "changelog")
        return parse_changelog(self._read_changelog(item), join_url(self._files.url, name))

    def lineage(self, start: int, end: LineageItem) -> tuple[LineageItem, ...]:
        """The versions `start` to `end` with their ids, by walking back through changelogs."""
        if not end.unique_id:
            return tuple(LineageItem(v, "") for v in range(start, end.version + 1))
        walked = [end]
        while walked[-1].version > start:
            last = walked[-1]
            name = join_url(self._files.url, file_name(last, "changelog"))
            earlier = [i for i in self._lineage_of(last) if start <= i.version < last.version]
            if not earlier:
                reason = f"its lineage lists no version before {last.version}"
                raise StateLoadError(name, reason, INVALID_LINEAGE)
            walked.extend(sorted(earlier, key=_version, reverse=True))
        versions = [item.version for item in reversed(walked)]
        if versions != list(range(start, end.version + 1)):
            reason = f"the lineage {versions} has gaps"
            raise StateLoadError(self._files.url, reason, INVALID_LINEAGE)
        return tuple(reversed(walked))

    def back_to_snapshot(self, end: LineageItem) -> tuple[LineageItem, ...]:
        """The newest snapshot before `end` and the changelogs after it; from the start without one.

        Lineages are followed beyond the snapshot that they begin at, which may be lost.
        """
        if end in self.snapshots:
            return (end,)
        older = (i.version for i in self.snapshots if i.version < end.version)
        for version in sorted({*older}, reverse=True):
            items = self.lineage(version, end)
            if items[0] in self.snapshots:
                return self._whole(items, items[1:])
        items = self.lineage(1, end)
        return self._whole(items, items)

    def _whole(
        self, items: tuple[LineageItem, ...], needed: tuple[LineageItem, ...]
    ) -> tuple[LineageItem, ...]:
        for item in needed:
            if item not in self.changelogs:
                raise self._missing(item)
        return items

    def _history(self, target: LineageItem) -> tuple[LineageItem, ...]:
        """The files that `target` may be made of, ascending: those of its lineage."""
        if not target.unique_id:
            there = (i for i in self.snapshots | self.changelogs if not i.unique_id)
            return tuple(sorted((i for i in there if i.version <= target.version), key=_version))
        if target in self.snapshots:
            # A snapshot needs no lineage, and the changelog that would contain it may be gone.
            return (target,)
        return (*sorted(self._lineage_of(target), key=_version), target)

    def _lineage_of(self, item: LineageItem) -> tuple[LineageItem, ...]:
        name = join_url(self._files.url, file_name(item, "changelog"))
        return read_lineage(self._read_changelog(item), name)

    def _missing(self, item: LineageItem) -> StateLoadError:
        return _missing(self._files, file_name(item, "changelog"), MISSING_CHANGELOG)

    def _read_changelog(self, item: LineageItem) -> bytes:
        name = file_name(item, "changelog")
        packed = _read_large(self._files, name, MISSING_CHANGELOG)
        source = join_url(self._files.url, name)
        return decompress(packed, self._settings.codec, source=source, bounds=self._files.bounds)


def replay(changelog: Changelog, draft: Draft, form: ValueWrapper, source: str) -> None:
    """Apply the operations of a changelog to the entries of a store."""
    for record in changelog.records:
        match record.change:
            case Operation.PUT:
                draft.put(record.key, record.value or b"")
            case Operation.MERGE:
                merged = form.merge(draft.get(record.key), record.value or b"")
                draft.put(record.key, merged)
            case Operation.DELETE:
                draft.remove(form.deleted_key(record.key, source))
            case Operation.DELETE_RANGE:
                end = form.single(record.key, record.value or b"", source)
                for key in [key for key, _ in draft.items() if record.key <= key < end]:
                    draft.remove(key)


def read_metadata(files: Files, item: LineageItem) -> SnapshotMetadata:
    name = file_name(item, "zip")
    source = join_url(files.url, name)
    data = _read_large(files, name, MISSING_SNAPSHOT)
    return _opened(data, source, files.bounds.room(source))[0]


def read_snapshot(
    files: Files, item: LineageItem, delimiter: bytes = b"", wanted: Selection = EVERYTHING
) -> tuple[SnapshotMetadata, dict[bytes, bytes]]:
    """The metadata of a snapshot and its entries. `delimiter` joins the values of a list.

    Of a selection with a prefix these are only the keys that begin so.
    """
    name = file_name(item, "zip")
    source = join_url(files.url, name)
    data = _read_large(files, name, MISSING_SNAPSHOT)
    return read_archive(files, data, delimiter, source, wanted)


def read_archive(
    files: Files, data: bytes, delimiter: bytes, source: str, wanted: Selection = EVERYTHING
) -> tuple[SnapshotMetadata, dict[bytes, bytes]]:
    """As `read_snapshot`, given the content of the zip."""
    room = files.bounds.room(source)
    metadata, archive = _opened(data, source, room)
    with tempfile.TemporaryDirectory(prefix="epochal-rocksdb-") as scratch:
        _unpack(archive, Path(scratch), source, room)
        _fetch(files, metadata, Path(scratch), source)
        # Tables are compressed as well, so what RocksDB reads out of them has a bound of its own.
        start, room = _start_of(wanted, metadata.families), files.bounds.room(source)
        return metadata, read_database(scratch, delimiter, source, room, start)


def _start_of(wanted: Selection, families: Mapping[str, int]) -> bytes:
    """How the wanted keys begin; empty without a prefix."""
    if not wanted.prefix or wanted.family is None or wanted.family not in families:
        return wanted.prefix
    return family_prefix(families[wanted.family]) + wanted.prefix


def _read_large(files: Files, name: str, condition: str) -> bytes:
    """The content of a file; a StateLoadError with the condition if it is missing."""
    try:
        return files.read(name, large=True)
    except FileNotFoundError:
        raise _missing(files, name, condition) from None


def _missing(files: Files, name: str, condition: str) -> StateLoadError:
    return StateLoadError(join_url(files.url, name), "the file does not exist", condition)


def _opened(data: bytes, source: str, room: Room) -> tuple[SnapshotMetadata, zipfile.ZipFile]:
    try:
        archive = zipfile.ZipFile(io.BytesIO(data))
        text = unpack_part(archive, METADATA_ENTRY, room).decode()
    except BROKEN_ZIP as error:
        raise StateFormatError(source, 0, f"it is not a snapshot ({error})") from None
    return parse_snapshot_metadata(text, source), archive


def _unpack(archive: zipfile.ZipFile, scratch: Path, source: str, room: Room) -> None:
    for name in archive.namelist():
        if not is_read(name):
            continue
        try:
            content = unpack_part(archive, name, room)
        except BROKEN_ZIP as error:
            raise StateFormatError(source, 0, f"{name}: {error}") from None
        (scratch / name).write_bytes(content)


def _fetch(files: Files, metadata: SnapshotMetadata, scratch: Path, source: str) -> None:
    """Copy the large files of a snapshot, which are stored beside the zip."""
    # The same file may be listed many times, and the sum must fit on the disk.
    files.bounds.check(source, sum(shared.size for shared in metadata.files), large=True)
    for shared in metadata.files:
        data = _read_large(files, shared.path, MISSING_SNAPSHOT)
        if len(data) != shared.size:
            reason = f"{source} expects {shared.size} bytes, but it has {len(data)}"
            raise StateLoadError(join_url(files.url, shared.path), reason, UNEXPECTED_SIZE)
        (scratch / shared.local_name).write_bytes(data)


def _is_gapless(items: tuple[LineageItem, ...], versions: range) -> bool:
    """Whether there is exactly one item for each version.

    Compares lengths first, because a version in a damaged file can be astronomical.
    """
    return len(items) == len(versions) and [item.version for item in items] == list(versions)


def _version(item: LineageItem) -> int:
    return item.version
