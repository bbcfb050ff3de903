"""Checks the files of RocksDB stores, as far as this is possible without RocksDB.

It checks that zips and their metadata can be read, that the data files they name exist and have
the right size, and that changelogs parse to their end. With unique ids, it also checks that every
file in a changelog's lineage exists. It does not look into the data files: RocksDB verifies the
checksums of their blocks when it reads them.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import replace

from epochal.checkpoint.id_ranges import listed, missing_runs
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
from epochal.state.store.rocksdb_directory import file_name
from epochal.tools.inspect.listing import Directories, read_bytes
from epochal.tools.inspect.state_listing import StoreListing
from epochal.tools.verify.check_content import ContentCheck, ContentSettings, Tick
from epochal.tools.verify.check_state import StateFacts
from epochal.tools.verify.findings import Finding, finding


class RocksCheck:
    """Checks RocksDB stores one by one and collects the findings."""

    def __init__(
        self, files: Files, directories: Directories, settings: ContentSettings, tick: Tick
    ) -> None:
        self._files, self._directories, self._settings, self._tick = (
            files,
            directories,
            settings,
            tick,
        )
        self._content = ContentCheck(files, settings, tick)

    @property
    def findings(self) -> list[Finding]:
        return self._content.findings

    def store(self, store: StoreListing, facts: StateFacts, unique_id: str) -> None:
        """Check zips, data files and changelogs, and with a unique id the lineage of its file."""
        before = len(self.findings)
        sizes = self._shared_sizes(store)
        reported: set[str] = set()
        first_use: dict[str, int] = {}
        for version, names in sorted(store.zips.items()):
            for name in names:
                for shared in self._zip(store, name, sizes, reported):
                    first_use.setdefault(f"{store.path}/{shared}", version)
        if self._settings.deep:
            self._shared_checksums(first_use)
        self.findings[before:] = [
            replace(each, version=first_use.get(each.path)) for each in self.findings[before:]
        ]
        changelogs: dict[str, Changelog] = {}
        for names in store.changelogs.values():
            for name in names:
                changelog = self._changelog(store, name)
                if changelog is not None:
                    changelogs[name] = changelog
        if unique_id:
            target = LineageItem(facts.restart_version, unique_id)
            name = file_name(target, "changelog")
            if name in changelogs:
                self.findings.extend(lineage_rules(store, target, changelogs[name]))

    def _shared_sizes(self, store: StoreListing) -> dict[str, int]:
        """Return the sizes of a store's data files."""
        sizes: dict[str, int] = {}
        for folder in ("SSTs", "logs"):
            path = f"{store.path}/{folder}"
            if path not in self._directories.by_path:
                continue
            try:
                for info in self._files.list(path):
                    sizes[f"{folder}/{info.name}"] = info.size
            except OSError as error:
                reason = error.strerror or type(error).__name__
                self.findings.append(finding("FILE_UNREADABLE", path, reason))
        return sizes

    def _shared_checksums(self, paths: Iterable[str]) -> None:
        """Check the data files that a snapshot needs. Others are left over and never read."""
        for path in paths:
            folder, _, name = path.rpartition("/")
            names = self._directories[folder].files
            if f".{name}.crc" in names:
                data = read_bytes(self._files, path, large=True)
                if isinstance(data, bytes):
                    self._content.hadoop_checksum(folder, names, name, data, "CRC_REFUSED")

    def _zip(
        self, store: StoreListing, name: str, sizes: dict[str, int], reported: set[str]
    ) -> list[str]:
        """Check one snapshot, and return the data files that it needs.

        `reported` are the data files that already have a finding.
        """
        self._tick()
        path = f"{store.path}/{name}"
        data = read_bytes(self._files, path, large=True)
        if isinstance(data, EpochalError):
            self.findings.append(finding("FILE_UNREADABLE", path, str(data)))
            return []
        try:
            metadata = read_zip(data, path, self._files.bounds)
        except StorageError as error:
            self.findings.append(finding("FILE_UNREADABLE", path, error.reason))
            return []
        if isinstance(metadata, str):
            self.findings.append(finding("ROCKSDB_ZIP_UNREADABLE", path, metadata))
            return []
        for shared in metadata.files:
            size = sizes.get(shared.path)
            where = f"{store.path}/{shared.path}"
            if size == shared.size or shared.path in reported:
                continue
            reported.add(shared.path)
            if size is None:
                self.findings.append(
                    finding("ROCKSDB_FILE_MISSING", where, f"{name} needs it, but it is missing")
                )
            else:
                self.findings.append(
                    finding(
                        "ROCKSDB_FILE_SIZE",
                        where,
                        f"it has {size} bytes, but {name} needs {shared.size}",
                    )
                )
        self._content.checksums(store, name, data, checked="_" not in name)
        return [shared.path for shared in metadata.files]

    def _changelog(self, store: StoreListing, name: str) -> Changelog | None:
        self._tick()
        path = f"{store.path}/{name}"
        data = read_bytes(self._files, path, large=True)
        if isinstance(data, EpochalError):
            self.findings.append(finding("FILE_UNREADABLE", path, str(data)))
            return None
        try:
            raw = decompress(data, self._settings.codec, source=path, bounds=self._files.bounds)
            changelog = parse_changelog(raw, path)
        except StorageError as error:
            self.findings.append(finding("FILE_UNREADABLE", path, error.reason))
            return None
        except StateFormatError as error:
            self.findings.append(
                finding("STATE_FILE_UNREADABLE", path, f"byte {error.offset}: {error.reason}")
            )
            return None
        except (StateError, OptionError) as error:
            self.findings.append(finding("STATE_FILE_UNREADABLE", path, str(error)))
            return None
        self._content.checksums(store, name, data)
        return changelog


def read_zip(data: bytes, path: str, bounds: Bounds = UNBOUNDED) -> SnapshotMetadata | str:
    """Unpack every part of a snapshot. Return its metadata, or a text about the problem."""
    room, metadata = bounds.room(path), None
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            for name in archive.namelist():
                try:
                    content = unpack_part(archive, name, room)
                except zipfile.BadZipFile:
                    return f"its part {name} is damaged"
                metadata = content if name == METADATA_ENTRY else metadata
        if metadata is None:
            return "it contains no metadata"
        text = metadata.decode()
    except BROKEN_ZIP as error:
        return f"it is not a readable zip file ({error})"
    try:
        return parse_snapshot_metadata(text, path)
    except StateFormatError as error:
        return error.reason


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
