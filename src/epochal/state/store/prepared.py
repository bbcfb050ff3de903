"""Writes, reads and publishes versions whose epoch is not decided yet.

An engine that decides an epoch after its state is durable first writes the state under a name that
contains the attempt. Once the epoch is decided, it publishes the state under Spark's plain name. So
a reader of plain names never sees an undecided version, and a task that outlived its attempt never
overwrites a decided one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import google_crc32c

from epochal.errors import OptionError, StateFormatError, StateLoadError
from epochal.files import Files, join_url
from epochal.state.files.chain import (
    HDFS_FILES,
    MISSING_DELTA,
    FileNames,
    checksum_name,
    id_of_prepared,
    kinds_of_prepared,
    prepared_label,
    published_name,
)
from epochal.state.store.versions import FrozenVersion

_ATTEMPT = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True, slots=True)
class PreparedVersion:
    """The file of an undecided version, and the CRC-32C of its content."""

    version: int
    name: str
    checksum: int


@dataclass(frozen=True, slots=True, eq=False)
class EncodedVersion:
    """A version and the file that makes it from the one before: a delta or a whole snapshot."""

    name: str
    """The name that Spark gives to the file."""
    data: bytes
    rows: FrozenVersion
    is_snapshot: bool = False


def write_prepared(
    files: Files,
    version: int,
    attempt: str,
    data: bytes,
    kinds: FileNames = HDFS_FILES,
    *,
    is_snapshot: bool = False,
) -> PreparedVersion:
    """Write a delta, or a snapshot in its place, under a name that contains the attempt."""
    if not _ATTEMPT.fullmatch(attempt):
        raise OptionError(
            f"The attempt {attempt!r} becomes part of a file name: use only letters, digits, - "
            f"and _."
        )
    plain = kinds.snapshot_name if is_snapshot else kinds.delta_name
    name = f"{plain(version)}{prepared_label(attempt)}"
    files.replace(name, data)
    return PreparedVersion(version, name, google_crc32c.value(data))


def read_prepared(files: Files, prepared: PreparedVersion, store: str) -> bytes:
    """The delta that was prepared, from its own name or, if already published, the plain one.

    Its checksum must match, so a delta of another attempt is never returned.
    """
    for name in (prepared.name, published_name(prepared.name)):
        try:
            data = files.read(name, large=True)
        except FileNotFoundError:
            continue
        if google_crc32c.value(data) == prepared.checksum:
            return data
        if name == prepared.name:
            raise StateFormatError(
                join_url(files.url, name), 0, "its checksum is not that of the prepared version"
            )
    raise StateLoadError(
        store, f"prepared delta {join_url(files.url, prepared.name)} does not exist", MISSING_DELTA
    )


def publish_prepared(files: Files, prepared: PreparedVersion, store: str) -> None:
    """Give a prepared version Spark's plain name. Safe to repeat, also after a crash."""
    data = read_prepared(files, prepared, store)
    if files.info(prepared.name) is None:
        return  # deleting that name is the last step, so all others are done
    kinds, name = kinds_of_prepared(prepared.name), published_name(prepared.name)
    if not id_of_prepared(prepared.name):
        # Another file of this version can only come from an undecided history. Loaders would prefer
        # a snapshot to the delta, so it is deleted first. The same holds for checksums of former
        # files. Under a unique id there is no other file.
        both = {kinds.snapshot_name(prepared.version), kinds.delta_name(prepared.version)}
        for stale in (*sorted(both - {name}), *map(checksum_name, sorted(both, reverse=True))):
            files.delete(stale)
    files.replace(name, data)
    files.delete(prepared.name)
