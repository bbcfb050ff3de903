"""A version that is written but not decided.

An engine that decides an epoch after its state is durable writes the state under a name that
carries the attempt, and publishes it under Spark's plain name once the decision stands. A reader
that goes by the plain name never sees an undecided version, and a task that outlived its attempt
never overwrites a decided one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import google_crc32c

from epochal.errors import OptionError, StateFormatError, StateLoadError
from epochal.files import Files, join_url
from epochal.state.files.chain import (
    MISSING_DELTA,
    checksum_name,
    delta_name,
    prepared_name,
    snapshot_name,
)

_ATTEMPT = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True, slots=True)
class PreparedVersion:
    """Where an undecided version is, and the CRC-32C of its file."""

    version: int
    name: str
    checksum: int


def write_prepared(files: Files, version: int, attempt: str, data: bytes) -> PreparedVersion:
    """Write a delta under the attempt's name."""
    if not _ATTEMPT.fullmatch(attempt):
        raise OptionError(f"An attempt is letters, digits, - and _ only, not {attempt!r}.")
    name = prepared_name(version, attempt)
    files.replace(name, data)
    return PreparedVersion(version, name, google_crc32c.value(data))


def read_prepared(files: Files, prepared: PreparedVersion, store: str) -> bytes:
    """The delta that was prepared, or published already; nothing else passes for it."""
    for name in (prepared.name, delta_name(prepared.version)):
        try:
            data = files.read(name)
        except FileNotFoundError:
            continue
        if google_crc32c.value(data) == prepared.checksum:
            return data
        if name == prepared.name:
            raise StateFormatError(
                join_url(files.url, name), 0, "the file is not the one that was prepared"
            )
    raise StateLoadError(
        store,
        f"prepared delta {join_url(files.url, prepared.name)} does not exist",
        MISSING_DELTA,
    )


def publish_prepared(files: Files, prepared: PreparedVersion, store: str) -> None:
    """Give a prepared version Spark's plain name. May be repeated, also after a crash."""
    data = read_prepared(files, prepared, store)
    if files.info(prepared.name) is None:
        return  # removing that name is the last step, so all others are done
    name, snapshot = delta_name(prepared.version), snapshot_name(prepared.version)
    # A snapshot of this version can only come from a history that was not decided: it would hide
    # the delta.
    for stale in (snapshot, checksum_name(snapshot), checksum_name(name)):
        files.delete(stale)
    files.replace(name, data)
    files.delete(prepared.name)
