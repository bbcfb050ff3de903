"""Checks the files of RocksDB stores without RocksDB.

It checks that zips and their metadata can be read, that the MANIFEST in them is sound and names
the same data files, that these exist, have the right size and in every block the right checksum,
and that changelogs parse to their end. With unique ids, it also checks that every file in a
changelog's lineage exists. In deep mode `check_columns` reads the databases.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from epochal.checkpoint.metadata_log import listed, missing_runs
from epochal.errors import EpochalError, OptionError, StateError, StateFormatError, StorageError
from epochal.files import UNBOUNDED, Bounds, Files
from epochal.state.files.chain import files_to_load
from epochal.state.files.codecs import decompress
from epochal.state.files.rocksdb_changelog import Changelog, LineageItem, parse_changelog
from epochal.state.files.rocksdb_snapshot import (
    BROKEN_ZIP,
    METADATA_ENTRY,
    SnapshotMetadata,
    parse_snapshot_metadata,
    unpack_part,
)
from epochal.state.files.rocksdb_tables import check_table, live_tables
from epochal.state.store.rocksdb_directory import file_name, parse_name
from epochal.tools.inspect.listing import Directories, read_bytes
from epochal.tools.inspect.state_listing import StoreListing
from epochal.tools.verify.check_content import ContentCheck, ContentSettings, Tick
from epochal.tools.verify.check_files import stale_rules
from epochal.tools.verify.check_state import StateFacts
from epochal.tools.verify.findings import Finding, finding

if TYPE_CHECKING:
    from epochal.tools.verify.check_columns import EntryCheck

_CURRENT, _MANIFEST = "CURRENT", "MANIFEST-"


class RocksCheck:
    def __init__(
        self,
        files: Files,
        directories: Directories,
        settings: ContentSettings,
        tick: Tick,
        tables: dict[str, Finding | int | None] | None = None,
        entries: EntryCheck | None = None,
    ) -> None:
        self._files, self._directories, self._settings = files, directories, settings
        self._entries = entries
        # Data files that are checked already, with what is wrong or the session that wrote them.
        # Snapshots share them.
        self._tables = {} if tables is None else tables
        # The session that a snapshot names for a data file, and that snapshot.
        self._sessions: dict[str, tuple[int, str]] = {}
        self._content = ContentCheck(files, settings, tick)

    @property
    def findings(self) -> list[Finding]:
        return self._content.findings

    def store(self, store: StoreListing, facts: StateFacts, unique_id: str) -> None:
        """Check zips, data files and changelogs, and with a unique id the lineage of its file."""
        before = len(self.findings)
        sizes: dict[str, int] = {}
        for folder in ("SSTs", "logs"):
            path = f"{store.path}/{folder}"
            if path not in self._directories.by_path:
                continue
            try:
                sizes |= {f"{folder}/{info.name}": info.size for info in self._files.list(path)}
            except OSError as error:
                reason = error.strerror or type(error).__name__
                self._content.report("FILE_UNREADABLE", path, reason)
        reported: set[str] = set()
        first_use: dict[str, int] = {}
        snapshots: dict[str, list[str]] = {}
        for version, names in sorted(store.zips.items()):
            for name in names:
                needed = self._zip(store, name, sizes, reported)
                snapshots[name] = [f"{store.path}/{shared}" for shared in needed]
                for path in snapshots[name]:
                    first_use.setdefault(path, version)
        self._shared_files(first_use, reported={each.path for each in self.findings})
        self.findings[before:] = [
            replace(each, version=first_use.get(each.path)) for each in self.findings[before:]
        ]
        changelogs: dict[str, Changelog] = {}
        for _, names in sorted(store.changelogs.items()):
            for name in names:
                changelog = self._changelog(store, name)
                if changelog is not None:
                    changelogs[name] = changelog
        if unique_id:
            target = LineageItem(facts.restart_version, unique_id)
            name = file_name(target, "changelog")
            if name in changelogs:
                self.findings.extend(lineage_rules(store, target, changelogs[name]))
        if self._entries is not None:
            bad = {each.path for each in self.findings[before:]}
            self.findings.extend(
                self._entries.store(
                    store,
                    [
                        _item(name)
                        for name, shared in snapshots.items()
                        if not bad & {f"{store.path}/{name}", *shared}
                    ],
                    {_item(name): each for name, each in changelogs.items()},
                )
            )

    def _shared_files(self, paths: Iterable[str], reported: Collection[str]) -> None:
        """Check the data files that a snapshot needs. Others are left over and never read."""
        for path in paths:
            if path in reported:
                continue
            if path not in self._tables:
                self._tables[path] = self._table(path)
            found = self._tables[path]
            if isinstance(found, Finding):
                self.findings.append(found)
            elif found is not None and self._sessions.get(path, (found,))[0] != found:
                self._content.report(
                    "ROCKSDB_FILE_BROKEN",
                    path,
                    f"another process wrote it than the MANIFEST of {self._sessions[path][1]} "
                    f"names: its unique id differs",
                )

    def _table(self, path: str) -> Finding | int | None:
        """Check one data file, and in deep mode also the checksum that Hadoop has of it.

        If nothing is wrong, it is the session that wrote the file.
        """
        folder, _, name = path.rpartition("/")
        data = read_bytes(self._files, path, large=True)
        if isinstance(data, EpochalError):
            return finding("FILE_UNREADABLE", path, str(data))
        try:
            session = None
            if name.endswith(".sst"):
                session = check_table(data, path, self._files.bounds.room(path))
        except StateFormatError as error:
            return finding("ROCKSDB_FILE_BROKEN", path, f"byte {error.offset}: {error.reason}")
        except StorageError as error:
            return finding("FILE_UNREADABLE", path, error.reason)
        if isinstance(session, str):
            return finding("ROCKSDB_UNCHECKED", path, f"{session}, which Epochal cannot check")
        names = self._directories[folder].files
        if self._settings.deep:
            refused = stale_rules(self._files, folder, names, {name: data}, "CRC_REFUSED")
            self.findings.extend(refused)
        return session

    def _zip(
        self, store: StoreListing, name: str, sizes: dict[str, int], reported: set[str]
    ) -> list[str]:
        """Check one snapshot, and return the data files that it needs.

        `reported` are the data files that already have a finding.
        """
        path, report = f"{store.path}/{name}", self._content.report
        data = self._content.read(path)
        if data is None:
            return []
        try:
            checked = read_zip(data, path, self._files.bounds)
        except StorageError as error:
            report("FILE_UNREADABLE", path, error.reason)
            return []
        if isinstance(checked, str):
            report("ROCKSDB_ZIP_UNREADABLE", path, checked)
            return []
        metadata, sessions = checked
        for shared in metadata.files:
            if shared.local_name in sessions:
                expected = (sessions[shared.local_name], name)
                self._sessions.setdefault(f"{store.path}/{shared.path}", expected)
        for shared in metadata.files:
            size = sizes.get(shared.path)
            where = f"{store.path}/{shared.path}"
            if size == shared.size or shared.path in reported:
                continue
            reported.add(shared.path)
            if size is None:
                report("ROCKSDB_FILE_MISSING", where, f"{name} needs it, but it is missing")
            else:
                message = f"it has {size} bytes, but {name} needs {shared.size}"
                report("ROCKSDB_FILE_SIZE", where, message)
        self._content.checksums(store, name, data, checked="_" not in name)
        return [shared.path for shared in metadata.files]

    def _changelog(self, store: StoreListing, name: str) -> Changelog | None:
        path, report = f"{store.path}/{name}", self._content.report
        data = self._content.read(path)
        if data is None:
            return None
        try:
            raw = decompress(data, self._settings.codec, source=path, bounds=self._files.bounds)
            changelog = parse_changelog(raw, path)
        except StorageError as error:
            report("FILE_UNREADABLE", path, error.reason)
            return None
        except StateFormatError as error:
            report("STATE_FILE_UNREADABLE", path, f"byte {error.offset}: {error.reason}")
            return None
        except (StateError, OptionError) as error:
            report("STATE_FILE_UNREADABLE", path, str(error))
            return None
        self._content.checksums(store, name, data)
        return changelog


def _item(name: str) -> LineageItem:
    parsed = parse_name(name)
    assert parsed is not None, f"{name} is in the listing of state files"
    return parsed[0]


def read_zip(
    data: bytes, path: str, bounds: Bounds = UNBOUNDED
) -> tuple[SnapshotMetadata, dict[str, int]] | str:
    """Unpack every part of a snapshot.

    Return its metadata and the session that wrote each of its tables, or a text about the problem.
    """
    room = bounds.room(path)
    kept: dict[str, bytes] = {}
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            for name in archive.namelist():
                try:
                    content = unpack_part(archive, name, room)
                except zipfile.BadZipFile:
                    return f"its part {name} is damaged"
                if name in (METADATA_ENTRY, _CURRENT) or name.startswith(_MANIFEST):
                    kept[name] = content
        if METADATA_ENTRY not in kept:
            return "it contains no metadata"
        metadata = parse_snapshot_metadata(kept[METADATA_ENTRY].decode(), path)
    except StateFormatError as error:
        return error.reason
    except BROKEN_ZIP as error:
        return f"it is not a readable zip file ({error})"
    sessions = _sessions_in_manifest(kept, metadata)
    return sessions if isinstance(sessions, str) else (metadata, sessions)


def _sessions_in_manifest(
    parts: Mapping[str, bytes], metadata: SnapshotMetadata
) -> dict[str, int] | str:
    """The session that wrote each table, by the list of tables that RocksDB opens the snapshot
    with, or what is wrong with that list."""
    named = parts.get(_CURRENT, b"").decode("ascii", "replace").rstrip("\n")
    manifest = parts.get(named)
    if manifest is None or not named.startswith(_MANIFEST):
        return f"its part {_CURRENT} names no {_MANIFEST} that it contains"
    try:
        tables = live_tables(manifest)
    except ValueError as error:
        return f"its part {named} is damaged: {error}"
    recorded = {
        each.local_name: each.size for each in metadata.files if each.path.startswith("SSTs/")
    }
    named_tables = {f"{number:06}.sst": table for number, table in (tables or {}).items()}
    listed_tables = {name: table.size for name, table in named_tables.items()}
    if tables is None or listed_tables == recorded:
        known = named_tables.items()
        return {name: table.session for name, table in known if table.session is not None}
    other = sorted(listed_tables.items() ^ recorded.items())[0][0]
    return f"its part {named} and its metadata disagree about {other}"


def lineage_rules(
    store: StoreListing, target: LineageItem, changelog: Changelog
) -> Iterator[Finding]:
    """From the version the commit log names back to a snapshot: every file must be there."""
    name = file_name(target, "changelog")
    items = (*changelog.lineage, target)
    chain = files_to_load(
        target.version,
        (item.version for item in items if file_name(item, "zip") in store.files),
        (item.version for item in items if file_name(item, "changelog") in store.files),
    )
    for item in changelog.lineage:
        needed = file_name(item, "changelog")
        if item.version in chain.deltas and needed not in store.files:
            yield finding(
                "ROCKSDB_ID_MISSING", f"{store.path}/{needed}", f"the lineage of {name} names it"
            )
    unnamed = missing_runs((item.version for item in items), chain.snapshot + 1, target.version)
    if unnamed:
        yield finding(
            "ROCKSDB_ID_MISSING",
            f"{store.path}/{name}",
            f"its lineage must lead back to a snapshot that exists, or to version 1; it lacks "
            f"version {listed(unnamed)}",
        )
