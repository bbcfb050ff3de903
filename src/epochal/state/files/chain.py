"""Decides which files make a version of a store, and which files may be deleted.

This module is pure: it takes file names and version numbers and returns the same. Every reader,
writer and tool asks it, so the rules below are written down once.

A store's directory holds `N.delta`, the changes that turn version N-1 into N, and now and then
`N.snapshot`, all rows of version N. RocksDB's changelog checkpoints have the same shape: its
`N.changelog` is a delta and its `N.zip` is a snapshot. Version 0 is the empty store and has no
file.

**What to load** (`files_to_load`). Version N is the newest snapshot at or below N plus the delta of
every version after it, up to N. This is the rule of Spark's loader.

- A snapshot at N wins over a delta at N. Deltas at or below the snapshot are not read, so they may
  be missing.
- Without a snapshot at or below N, the chain starts at `1.delta`, because version 0 is empty.
- A missing delta is an error, never a step to skip: without its changes the result is not version
  N but another state that looks like it. An older snapshot does not help either, because its chain
  needs the same missing delta. So the newest snapshot alone decides whether N can be loaded.
- An *unreadable* snapshot is different: an older snapshot and the deltas between them contain the
  same rows. Spark 4.2 and later falls back to it, and so does `plan_snapshots`.

**What maintenance keeps** (`files_to_retain`, `deletable`). Spark deletes files only below the
first file that the oldest retained version needs. That version is `newest - minVersionsToRetain`.
The rule resembles the loader's, but is not the same, and the files we leave must be the files that
Spark leaves:

- Maintenance sees one file per version: a snapshot hides the delta of its own version. Cleanup
  therefore deletes an old snapshot in one round and the delta it hid in the next.
- The version itself must have a file.
- Above a snapshot every version must have a file. If one is missing, maintenance does nothing.
- Without any snapshot the list starts at the oldest file, and holes are not noticed. That is safe,
  because there is nothing older to delete. It also means that a list from this rule must never be
  used to load a version.

**Prepared deltas.** An engine that decides an epoch after its state is durable writes the delta
as `N.delta.prepared-LABEL` or `N.changelog.prepared-LABEL` first. Neither rule sees these names. A
prepared delta of an earlier attempt may be deleted as soon as a later attempt has decided an epoch
(`prepared_before`). It must not be deleted sooner: until then a driver that was fenced a moment ago
could still decide the epoch that the file belongs to.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from epochal.checkpoint.metadata_log import missing_runs

MISSING_DELTA = "CANNOT_LOAD_STATE_STORE.CANNOT_READ_DELTA_FILE_NOT_EXISTS"
MISSING_SNAPSHOT = "CANNOT_LOAD_STATE_STORE.CANNOT_READ_MISSING_SNAPSHOT_FILE"

_VERSION = re.compile(r"\d+")
_CHECKSUM = re.compile(r"(\d+)[._].*\.crc")
_PREPARED = re.compile(r"(\d+(?:_([0-9A-Za-z-]+))?\.(delta|changelog|zip))\.prepared-(.+)")
_PREPARED_MARK = ".prepared-"
_ATTEMPT = re.compile(r"a(\d+)")


@dataclass(frozen=True, slots=True)
class FileNames:
    """How a provider ends the names of its deltas and snapshots."""

    delta: str
    snapshot: str

    def stem(self, version: int) -> str:
        """What the names of the files of a version begin with."""
        return str(version)

    def delta_name(self, version: int) -> str:
        """The file with the changes that made `version`."""
        return f"{self.stem(version)}.{self.delta}"

    def snapshot_name(self, version: int) -> str:
        """The file with all rows of `version`."""
        return f"{self.stem(version)}.{self.snapshot}"

    def others(self, names: Iterable[str], below: int) -> list[str]:
        """The files of versions below `below`, also of other histories than the store's own."""
        return []

    def parse(self, name: str) -> StoreFile | None:
        """The delta or snapshot that a file name stands for; None for any other file."""
        # At the first dot: what follows it in `N.delta.crc`, and in the name of a prepared delta,
        # is then no kind of file.
        version, _, kind = name.partition(".")
        if kind not in (self.delta, self.snapshot) or not _VERSION.fullmatch(version):
            return None
        return StoreFile(int(version), kind == self.snapshot, self)

    def snapshot_versions(self, names: Iterable[str]) -> list[int]:
        """The versions that have a snapshot file."""
        files = map(self.parse, names)
        return sorted(file.version for file in files if file and file.is_snapshot)

    def delta_versions(self, names: Iterable[str]) -> list[int]:
        """The versions that have a delta file."""
        files = map(self.parse, names)
        return sorted(file.version for file in files if file and not file.is_snapshot)

    def latest_version(self, names: Iterable[str]) -> int:
        """The newest version with a file; 0 for an empty directory."""
        return max((file.version for file in map(self.parse, names) if file), default=0)


HDFS_FILES = FileNames("delta", "snapshot")
ROCKSDB_FILES = FileNames("changelog", "zip")


@dataclass(frozen=True, slots=True)
class StoreFile:
    """One delta or snapshot."""

    version: int
    is_snapshot: bool
    kinds: FileNames = HDFS_FILES

    @property
    def name(self) -> str:
        name = self.kinds.snapshot_name if self.is_snapshot else self.kinds.delta_name
        return name(self.version)


@dataclass(frozen=True, slots=True)
class VersionChain:
    """The files that make one version: a snapshot, then one delta for each version above it."""

    snapshot: int
    """The snapshot to start from; 0 stands for the empty store, which has no file."""
    deltas: range
    """The versions whose deltas are applied, in this order."""
    missing: tuple[range, ...]
    """Those of `deltas` that have no file, as runs. The version loads only if this is empty."""

    @property
    def first_missing(self) -> int | None:
        return self.missing[0].start if self.missing else None


@dataclass(frozen=True, slots=True)
class SnapshotPlan:
    """The snapshots to try, in order, and from which attempt on it counts as a repair."""

    attempts: tuple[int, ...]
    repairs_from: int
    latest: int
    selected: tuple[int, ...]
    eligible: tuple[int, ...]


def checksum_name(name: str) -> str:
    """The visible checksum file that Spark 4.1 writes beside a delta or snapshot."""
    return f"{name}.crc"


def kinds_of_prepared(name: str) -> FileNames:
    """The names that the provider of a prepared delta uses."""
    prepared = _PREPARED.fullmatch(name)
    return HDFS_FILES if not prepared or prepared[3] == HDFS_FILES.delta else ROCKSDB_FILES


def id_of_prepared(name: str) -> str:
    """The unique id in the name of a prepared file; empty if it has none."""
    prepared = _PREPARED.fullmatch(name)
    return prepared[2] or "" if prepared else ""


def id_of_version(name: str) -> str:
    """The unique id in the name of a delta or snapshot; empty if it has none."""
    return id_of_prepared(f"{name}{_PREPARED_MARK}-")


def prepared_label(label: str) -> str:
    """What the name of a file whose epoch is not decided yet has after the plain name.

    Such a name has three parts, and Spark's listings ignore it.
    """
    return f"{_PREPARED_MARK}{label}"


def is_prepared_snapshot(name: str) -> bool:
    prepared = _PREPARED.fullmatch(name)
    return prepared is not None and prepared[3] == ROCKSDB_FILES.snapshot


def published_name(name: str) -> str:
    """The plain name that a prepared file gets when its epoch is decided."""
    return name.partition(_PREPARED_MARK)[0]


def attempt_label(attempt: int) -> str:
    """The label that one attempt of the engine gives to the deltas it prepares."""
    return f"a{attempt}"


def is_prepared(name: str) -> bool:
    """Whether a file is a prepared delta, of any label."""
    return _PREPARED.fullmatch(name) is not None


def prepared_before(name: str, attempt: int) -> bool:
    """Whether a file is a delta that an attempt of the engine before `attempt` prepared.

    It may be deleted once `attempt` has decided an epoch; see the module's docstring.
    """
    prepared = _PREPARED.fullmatch(name)
    label = _ATTEMPT.fullmatch(prepared[4]) if prepared else None
    return label is not None and int(label[1]) < attempt


def files_to_load(version: int, snapshots: Iterable[int], deltas: Iterable[int]) -> VersionChain:
    """Which files make `version`, given the versions that have a snapshot and those with a delta.

    The caller names the files, so this serves both providers: `N.snapshot` and `N.delta`, or
    RocksDB's `N.zip` and `N.changelog`. With unique ids in the names, pass only the versions of
    files that belong to the lineage.
    """
    # Only the newest snapshot: from an older one the chain needs the same deltas, and more.
    start = _starts(version, snapshots)[0]
    missing = missing_runs(deltas, start + 1, version)
    return VersionChain(start, range(start + 1, version + 1), tuple(missing))


def plan_snapshots(
    version: int,
    snapshots: Iterable[int],
    *,
    repair: bool,
    failures_before_repair: int,
    max_replay: int,
) -> SnapshotPlan:
    """Which snapshots may start a load of `version`, best first; 0 stands for the empty store.

    The newest is tried `failures_before_repair` times. If `repair` is on, older ones that are at
    most `max_replay` versions below follow.
    """
    eligible = _starts(version, snapshots)
    latest, older = eligible[0], tuple(eligible[1:])
    if not repair:
        return SnapshotPlan((latest,), 1, latest, (), older)
    selected = tuple(s for s in older if version - s <= max_replay)
    # The newest more than once: a failure may pass, and every older one means more to replay.
    first = (latest,) * failures_before_repair
    return SnapshotPlan(first + selected, len(first), latest, selected, older)


def files_by_version(names: Iterable[str], kinds: FileNames = HDFS_FILES) -> list[StoreFile]:
    """One file per version, ascending, as maintenance sees them: a snapshot hides its delta."""
    by_version: dict[int, StoreFile] = {}
    for file in map(kinds.parse, names):
        if file is not None and (file.is_snapshot or file.version not in by_version):
            by_version[file.version] = file
    return [by_version[version] for version in sorted(by_version)]


def files_to_retain(files: Sequence[StoreFile], version: int) -> list[StoreFile] | None:
    """The files that maintenance keeps for `version`, out of `files_by_version`.

    None if `version` has no file, or if a version between its snapshot and itself has none: then
    maintenance must not touch the directory. Do not load by this list; see the module's docstring.
    """
    upto = [file for file in files if file.version <= version]
    if not upto or upto[-1].version != version:
        return None
    base = next((n for n in reversed(range(len(upto))) if upto[n].is_snapshot), None)
    if base is None:
        return upto
    # One file for each version, in order: there is no gap exactly if there are as many as versions.
    retained = upto[base:]
    return retained if len(retained) == version - retained[0].version + 1 else None


def snapshot_due(
    names: Iterable[str],
    cached: Collection[int],
    min_deltas_for_snapshot: int,
    kinds: FileNames = HDFS_FILES,
) -> int | None:
    """The version to write a snapshot of now: the newest, if it is cached and has many deltas."""
    files = files_by_version(names, kinds)
    if not files or files[-1].version not in cached:
        return None
    retained = files_to_retain(files, files[-1].version)
    if retained is None:
        return None
    deltas = sum(not file.is_snapshot for file in retained)
    return files[-1].version if deltas > min_deltas_for_snapshot else None


def deletable(
    names: Iterable[str], min_versions_to_retain: int, kinds: FileNames = HDFS_FILES
) -> list[str]:
    """The files that no retained version needs: first deltas and snapshots, then checksum files.

    Empty if maintenance cannot tell what the oldest retained version needs.
    """
    listed = list(names)
    files = files_by_version(listed, kinds)
    if not files:
        return []
    oldest_retained = files[-1].version - min_versions_to_retain
    retained = files_to_retain(files, oldest_retained) if oldest_retained > 0 else None
    if retained is None:
        return []
    # This is a snapshot, and every retained version starts at it or at a newer one, so no retained
    # version reads a file below it. Or it is the oldest file, and there is none below it.
    first = retained[0].version
    return _below(first, [file.name for file in files if file.version < first], listed, kinds)


def below_snapshot(names: Iterable[str], version: int, kinds: FileNames = HDFS_FILES) -> list[str]:
    """The files that only versions below `version` need, also if not every version has a file.

    The newest snapshot at or below `version` is where every version from there on starts.
    """
    listed = list(names)
    # Without a snapshot every version needs the whole chain; no file is below 0.
    first = max((s for s in kinds.snapshot_versions(listed) if s <= version), default=0)
    files = (file for file in map(kinds.parse, listed) if file is not None)
    old = sorted(file.name for file in files if file.version < first)
    return _below(first, old, listed, kinds)


def _below(first: int, old: list[str], listed: Sequence[str], kinds: FileNames) -> list[str]:
    """The files below a version: those of the store, those of other histories, checksum files."""
    checksums = [
        name for name in listed if (parsed := _CHECKSUM.fullmatch(name)) and int(parsed[1]) < first
    ]
    return old + sorted(set(kinds.others(listed, first)) - set(old)) + sorted(checksums)


def _starts(version: int, snapshots: Iterable[int]) -> list[int]:
    """The snapshots that a load of `version` can start from, newest first, 0 last."""
    return sorted({0, *(s for s in snapshots if 0 < s <= version)}, reverse=True)
