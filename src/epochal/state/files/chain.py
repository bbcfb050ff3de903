"""Decides which files make a version of a store, and which files may go. Pure: names in, names out.

A store's directory holds `N.delta`, what turned version N-1 into N, and now and then `N.snapshot`,
all of N. Version N is the newest snapshot at or below N plus every delta after it; version 0 is
empty and has no file.

What a reader would get wrong: maintenance sees one file per version. Where a snapshot and a delta
of one version lie together the snapshot hides the delta, so cleanup removes the snapshot in one
round and the delta in the next. Spark does it so, and the files left must be the files Spark
leaves.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

_FILE = re.compile(r"(\d+)\.(delta|snapshot)")
_CHECKSUM = re.compile(r"(\d+)[._].*\.crc")


@dataclass(frozen=True, slots=True)
class StoreFile:
    """One delta or snapshot."""

    version: int
    is_snapshot: bool

    @property
    def name(self) -> str:
        return snapshot_name(self.version) if self.is_snapshot else delta_name(self.version)


@dataclass(frozen=True, slots=True)
class SnapshotPlan:
    """The snapshots to try, in order, and from which attempt on it counts as a repair."""

    attempts: tuple[int, ...]
    repairs_from: int
    latest: int
    selected: tuple[int, ...]
    eligible: tuple[int, ...]


def delta_name(version: int) -> str:
    """The file of what made `version`."""
    return f"{version}.delta"


def snapshot_name(version: int) -> str:
    """The file of everything in `version`."""
    return f"{version}.snapshot"


def checksum_name(name: str) -> str:
    """The visible checksum file that Spark 4.1 writes beside a delta or snapshot."""
    return f"{name}.crc"


def prepared_name(version: int, attempt: str) -> str:
    """A delta that is written but not decided. Three parts, so Spark's listings pass over it."""
    return f"{version}.delta.prepared-{attempt}"


def parse_name(name: str) -> StoreFile | None:
    """The delta or snapshot that a file name stands for; None for any other file."""
    found = _FILE.fullmatch(name)
    return StoreFile(int(found[1]), found[2] == "snapshot") if found else None


def files_by_version(names: Iterable[str]) -> list[StoreFile]:
    """One file per version, ascending; a snapshot hides the delta of its version."""
    found: dict[int, StoreFile] = {}
    for file in map(parse_name, names):
        if file is not None and (file.is_snapshot or file.version not in found):
            found[file.version] = file
    return [found[version] for version in sorted(found)]


def files_for_version(files: Sequence[StoreFile], version: int) -> list[StoreFile] | None:
    """What rebuilds `version`: its snapshot, or the nearest one below and all deltas since.

    None if there is a hole, or no file of the version itself. Without any snapshot the chain
    starts at the first file there is, whatever its version: that is what Spark keeps.
    """
    upto = [file for file in files if file.version <= version]
    if not upto or upto[-1].version != version:
        return None
    base = next((n for n in reversed(range(len(upto))) if upto[n].is_snapshot), None)
    if base is None:
        return upto
    chain = upto[base:]
    return chain if len(chain) == version - chain[0].version + 1 else None


def snapshot_due(
    names: Iterable[str], cached: Collection[int], min_deltas_for_snapshot: int
) -> int | None:
    """The version to write a snapshot of now: the newest, if it is cached here and long to load."""
    files = files_by_version(names)
    if not files or files[-1].version not in cached:
        return None
    chain = files_for_version(files, files[-1].version)
    if chain is None:
        return None
    deltas = sum(not file.is_snapshot for file in chain)
    return files[-1].version if deltas > min_deltas_for_snapshot else None


def deletable(names: Iterable[str], min_versions_to_retain: int) -> list[str]:
    """The files that no version still retained needs, each delta or snapshot before its checksum.

    Nothing at all when the oldest version to retain has no complete chain of files.
    """
    listed = list(names)
    files = files_by_version(listed)
    if not files:
        return []
    earliest = files[-1].version - min_versions_to_retain
    chain = files_for_version(files, earliest) if earliest > 0 else None
    if chain is None:
        return []
    first = chain[0].version
    old = [file.name for file in files if file.version < first]
    checksums = [
        name for name in listed if (found := _CHECKSUM.fullmatch(name)) and int(found[1]) < first
    ]
    return old + sorted(checksums)


def plan_snapshots(
    version: int,
    snapshots: Iterable[int],
    *,
    repair: bool,
    failures_before_repair: int,
    max_replay: int,
) -> SnapshotPlan:
    """Which snapshots may start a load of `version`, best first; 0 stands for the empty store.

    The newest is tried `failures_before_repair` times. If repair is on, older ones follow that lie
    at most `max_replay` versions below.
    """
    eligible = sorted({0, *(s for s in snapshots if 0 < s <= version)}, reverse=True)
    latest, older = eligible[0], tuple(eligible[1:])
    if not repair:
        return SnapshotPlan((latest,), 1, latest, (), older)
    selected = tuple(s for s in older if version - s <= max_replay)
    first = (latest,) * failures_before_repair
    return SnapshotPlan(first + selected, len(first), latest, selected, older)


def snapshot_versions(names: Iterable[str]) -> list[int]:
    """The versions that have a snapshot file."""
    return sorted(file.version for file in map(parse_name, names) if file and file.is_snapshot)


def latest_version(names: Iterable[str]) -> int:
    """The newest version with a file; 0 for an empty directory."""
    return max((file.version for file in map(parse_name, names) if file), default=0)
