"""Sorts the names below `state` into operators, partitions, stores and versions. Pure.

A checkpoint may have forty thousand of these names, so this module parses them with plain string
methods. `layout.parse_state_file` has the same rules for a single name, with the reasons.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace

from epochal.checkpoint.layout import (
    DEFAULT_STORE,
    STATE,
    StateFileKind,
    StoreKey,
    parse_state_file,
)
from epochal.state.files.chain import VersionChain, files_to_load
from epochal.state.store.store_format import StoreFormat, format_of_files
from epochal.tools.inspect.listing import Directories, Directory

_NOT_STORES = frozenset({"_metadata", "SSTs", "logs", "archive"})
_KINDS = ("delta", "snapshot", "changelog", "zip")


@dataclass(frozen=True, slots=True)
class StoreListing:
    """One store of one partition: the files of each version."""

    operator: int
    partition: int
    name: str
    path: str
    deltas: dict[int, str]
    snapshots: dict[int, str]
    """Version to file name."""
    changelogs: dict[int, list[str]]
    zips: dict[int, list[str]]
    """Version to file names. With checkpoint format 2, each attempt of a batch leaves its own."""
    checksums: tuple[str, ...]
    """Spark's visible checksum files, `NAME.crc`."""
    strays: tuple[str, ...]
    """Names that make Spark fail when it lists the directory: `X.Y`, where X is no version."""
    files: frozenset[str]

    @property
    def key(self) -> StoreKey:
        return StoreKey(self.operator, self.partition, self.name)

    @property
    def format(self) -> StoreFormat:
        """The format of the files; Spark's default if there are none."""
        kinds = (self.deltas, self.snapshots, self.changelogs, self.zips)
        return format_of_files([name for name, files in zip(_KINDS, kinds, strict=True) if files])

    @property
    def versions(self) -> list[int]:
        """Every version that has a file, ascending."""
        found = self.deltas.keys() | self.snapshots.keys()
        return sorted(found | self.changelogs.keys() | self.zips.keys())

    @property
    def delta_suffix(self) -> str:
        """What the files with the changes of one version are called."""
        return self.format.files.delta

    def chain(self, version: int) -> VersionChain:
        """The files that make `version`. With unique ids they may be of any attempt."""
        if self.format.is_database:
            return files_to_load(version, self.zips, self.changelogs)
        return files_to_load(version, self.snapshots, self.deltas)

    def needs(self, version: int, name: str) -> bool:
        """Whether loading `version` reads the file `name`; with unique ids, whether it may."""
        file, chain = parse_state_file(name), self.chain(version)
        if file is None:
            return False
        if file.kind in (StateFileKind.SNAPSHOT, StateFileKind.ZIP):
            return file.version == chain.snapshot
        return file.version in chain.deltas

    def without(self, paths: Collection[str]) -> StoreListing:
        """The store without some of its deltas and snapshots, which are given by their paths."""

        def rest(files: Mapping[int, str]) -> dict[int, str]:
            return {n: name for n, name in files.items() if f"{self.path}/{name}" not in paths}

        return replace(self, deltas=rest(self.deltas), snapshots=rest(self.snapshots))

    @property
    def bases(self) -> list[int]:
        """The versions that can be loaded without an earlier version, ascending."""
        return sorted(self.snapshots.keys() | self.zips.keys())


@dataclass(frozen=True, slots=True)
class OperatorListing:
    """A stateful operator and the stores of all its partitions."""

    operator: int
    path: str
    partitions: tuple[int, ...]
    stores: tuple[StoreListing, ...] = field(default=())

    @property
    def store_names(self) -> list[str]:
        return sorted({store.name for store in self.stores})

    @property
    def format(self) -> StoreFormat | None:
        """The format of its files; None if there are no files to tell."""
        return next((store.format for store in self.stores if store.versions), None)

    @property
    def provider(self) -> str | None:
        """What reports call the format."""
        return None if self.format is None else self.format.name


def operators_of(directories: Directories) -> list[OperatorListing]:
    """List every operator below `state`, ascending."""
    operators: list[OperatorListing] = []
    for operator in _numbers(directories[STATE]):
        path = f"{STATE}/{operator}"
        partitions = _numbers(directories[path])
        stores = tuple(
            store
            for partition in partitions
            for store in _stores(directories, operator, partition, f"{path}/{partition}")
        )
        operators.append(OperatorListing(operator, path, tuple(partitions), stores))
    return operators


def _stores(
    directories: Directories, operator: int, partition: int, path: str
) -> Iterator[StoreListing]:
    # The default store's files lie in the partition's directory, those of a named store in a
    # directory below it. Joins have only named stores.
    directory = directories[path]
    named = [
        name for name in directory.folders if name not in _NOT_STORES and not name.startswith(".")
    ]
    if not named or any(name.rpartition(".")[2] in _KINDS for name in directory.files):
        yield _store(operator, partition, DEFAULT_STORE, path, directory)
    for name in named:
        yield _store(operator, partition, name, f"{path}/{name}", directories[f"{path}/{name}"])


def _store(
    operator: int, partition: int, name: str, path: str, directory: Directory
) -> StoreListing:
    store = StoreListing(
        operator,
        partition,
        name,
        path,
        {},
        {},
        {},
        {},
        tuple(file for file in directory.files if file.endswith(".crc") and file[0] != "."),
        tuple(
            file
            for file in directory.files
            if file.count(".") == 1 and not is_number(file.partition(".")[0].partition("_")[0])
        ),
        frozenset(directory.files),
    )
    for file_name in directory.files:
        stem, _, kind = file_name.partition(".")
        if not is_number(stem):
            # Checkpoint format 2 names files `VERSION_UNIQUEID.KIND`.
            stem, _, unique_id = stem.partition("_")
            if not unique_id or not is_number(stem) or kind in ("delta", "snapshot"):
                continue
        if kind == "delta":
            store.deltas[int(stem)] = file_name
        elif kind == "snapshot":
            store.snapshots[int(stem)] = file_name
        elif kind == "changelog":
            store.changelogs.setdefault(int(stem), []).append(file_name)
        elif kind == "zip":
            store.zips.setdefault(int(stem), []).append(file_name)
    return store


def is_number(text: str) -> bool:
    """Whether `text` is a number in Spark's spelling: ASCII digits without leading zeros."""
    return text.isdecimal() and text.isascii() and (text[0] != "0" or text == "0")


def _numbers(directory: Directory) -> list[int]:
    return sorted(int(name) for name in directory.folders if is_number(name))
