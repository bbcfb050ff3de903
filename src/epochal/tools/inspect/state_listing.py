"""The state directory by its names: operators, partitions, stores, versions. Pure.

Forty thousand names are sorted out here, so the loop is plain string work; the same rules, name by
name and with reasons, are in `layout.parse_state_file`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from epochal.checkpoint.layout import DEFAULT_STORE, STATE
from epochal.state.files.chain import Chain, files_to_load
from epochal.tools.inspect.listing import Directory, Listing

HDFS, ROCKSDB = "hdfs", "rocksdb"

_NOT_STORES = frozenset({"_metadata", "SSTs", "logs", "archive"})
_KINDS = ("delta", "snapshot", "changelog", "zip")


@dataclass(frozen=True, slots=True)
class StorePicture:
    """One store of one partition: which versions have which files."""

    operator: int
    partition: int
    name: str
    path: str
    deltas: dict[int, str]
    snapshots: dict[int, str]
    """Version to file name."""
    changelogs: dict[int, list[str]]
    zips: dict[int, list[str]]
    """Version to file names: with checkpoint format 2 several attempts may lie side by side."""
    checksums: tuple[str, ...]
    """Spark's visible checksum files, `NAME.crc`."""
    strays: tuple[str, ...]
    """Names that Spark's listings trip over."""
    files: frozenset[str]

    @property
    def provider(self) -> str | None:
        """Which provider wrote here; None if nothing tells."""
        if self.zips or self.changelogs:
            return ROCKSDB
        return HDFS if self.deltas or self.snapshots else None

    @property
    def versions(self) -> list[int]:
        """Every version with a file of its own, ascending."""
        found = self.deltas.keys() | self.snapshots.keys()
        return sorted(found | self.changelogs.keys() | self.zips.keys())

    @property
    def delta_suffix(self) -> str:
        """What the files with the changes of one version are called."""
        return "changelog" if self.provider == ROCKSDB else "delta"

    def chain(self, version: int) -> Chain:
        """The files that make `version`. With unique ids they may be of any attempt."""
        if self.provider == ROCKSDB:
            return files_to_load(version, self.zips, self.changelogs)
        return files_to_load(version, self.snapshots, self.deltas)

    @property
    def bases(self) -> list[int]:
        """The versions that can be loaded without an earlier one, ascending."""
        return sorted(self.snapshots.keys() | self.zips.keys())


@dataclass(frozen=True, slots=True)
class OperatorPicture:
    """A stateful operator: its partitions' stores."""

    operator: int
    path: str
    partitions: tuple[int, ...]
    stores: tuple[StorePicture, ...] = field(default=())

    @property
    def store_names(self) -> list[str]:
        """The names of its stores, each once."""
        return sorted({store.name for store in self.stores})

    @property
    def provider(self) -> str | None:
        """Which provider wrote its files; None if nothing tells."""
        return next((store.provider for store in self.stores if store.provider), None)


def operators_of(listing: Listing) -> list[OperatorPicture]:
    """Every operator below `state`, ascending."""
    return [
        _operator(listing, operator, f"{STATE}/{operator}") for operator in _numbers(listing[STATE])
    ]


def _operator(listing: Listing, operator: int, path: str) -> OperatorPicture:
    partitions = _numbers(listing[path])
    stores = tuple(
        store
        for partition in partitions
        for store in _stores(listing, operator, partition, f"{path}/{partition}")
    )
    return OperatorPicture(operator, path, tuple(partitions), stores)


def _stores(listing: Listing, operator: int, partition: int, path: str) -> Iterator[StorePicture]:
    directory = listing[path]
    named = [
        name for name in directory.folders if name not in _NOT_STORES and not name.startswith(".")
    ]
    if not named or any(name.rpartition(".")[2] in _KINDS for name in directory.files):
        yield _store(operator, partition, DEFAULT_STORE, path, directory)
    for name in named:
        yield _store(operator, partition, name, f"{path}/{name}", listing[f"{path}/{name}"])


def _store(
    operator: int, partition: int, name: str, path: str, directory: Directory
) -> StorePicture:
    store = StorePicture(
        operator,
        partition,
        name,
        path,
        {},
        {},
        {},
        {},
        tuple(
            each for each in directory.files if each.endswith(".crc") and not each.startswith(".")
        ),
        tuple(_strays(directory.files)),
        frozenset(directory.files),
    )
    for each in directory.files:
        stem, _, kind = each.partition(".")
        if not is_number(stem):
            _add_with_id(store, each, stem, kind)
        elif kind == "delta":
            store.deltas[int(stem)] = each
        elif kind == "snapshot":
            store.snapshots[int(stem)] = each
        elif kind == "changelog":
            store.changelogs.setdefault(int(stem), []).append(each)
        elif kind == "zip":
            store.zips.setdefault(int(stem), []).append(each)
    return store


def _add_with_id(store: StorePicture, name: str, stem: str, kind: str) -> None:
    version, _, unique_id = stem.partition("_")
    if is_number(version) and unique_id:
        if kind == "changelog":
            store.changelogs.setdefault(int(version), []).append(name)
        elif kind == "zip":
            store.zips.setdefault(int(version), []).append(name)


def _strays(names: tuple[str, ...]) -> Iterator[str]:
    """Names of two parts whose first is not a version as Spark writes it."""
    for name in names:
        if name.count(".") == 1:
            version = name.partition(".")[0].partition("_")[0]
            if not is_number(version):
                yield name


def is_number(text: str) -> bool:
    """Whether a name, or its part before the dot, is a number as Spark writes it."""
    return text.isdecimal() and text.isascii() and (text[0] != "0" or text == "0")


def _numbers(directory: Directory) -> list[int]:
    return sorted(int(name) for name in directory.folders if is_number(name))
