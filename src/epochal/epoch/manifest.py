"""The manifest of a decided epoch: attempt, exact positions, state files and sink output. Pure.

It is stored under the key `epochal` in the metadata of the offset entry, which Spark ignores. A
file that no manifest names does not count: state is loaded by name and checksum, never by number.
Earlier releases wrote a state file per store, which `state` names. Now `chain` names the files with
the state, and `state` only the unique ids that Spark's files will have, if they have any.

The commit entry of the epoch has the same key. If it is missing there, we were killed after the
decision, and Spark has run the batch: it left a state and a commit of its own.

With checkpoint format 2 the name of a state file contains a unique id, and only the commit entry of
an epoch says which ids are live. A task gives a version its id when it prepares it. The manifest
thereby contains the ids, so an epoch that is finished after a crash is committed with the same
ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from epochal.checkpoint.entries import CommitEntry, OffsetEntry, StateUniqueIds
from epochal.checkpoint.layout import OWN_KEY
from epochal.checkpoint.spark_json import JsonValue
from epochal.epoch.epoch_files.state_chain import EpochRun, StateChain
from epochal.epoch.messages import PreparedState, by_store
from epochal.errors import EpochError, MalformedFileError
from epochal.state.files.chain import id_of_prepared

MANIFEST_KEY = OWN_KEY
MANIFEST_VERSION = 2
"""With epoch files. Version 1 has a state file per store, and is written by queries without state
too, so that earlier releases can read those."""

Long: TypeAlias = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
Natural: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


@dataclass(frozen=True, slots=True)
class OpenUnit:
    """A unit that is not read to its end: see `epochal.epoch.event_time.units`."""

    counted: tuple[Long, ...]
    """The highest event times that count, per watermark of the plan; -1 if none."""
    ends: tuple[Mapping[str, str], ...]
    """Per source, by partition id: where the unit ends; without partitions that have arrived."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """Everything that a decided epoch consists of."""

    epoch: int
    attempt: int
    run_id: str
    positions: tuple[Mapping[str, str], ...]
    """Per source, by partition id: where the epoch ended."""
    messages: tuple[bytes, ...]
    """What each task's writer returned, by task."""
    state: tuple[PreparedState, ...]
    watermarks: tuple[int, ...] = field(default=())
    """Highest event time seen, per watermark of the plan; -1 if none."""
    marks_commit: bool = True
    """Whether the commit entry says who wrote it. Early releases did not do that."""
    chain: StateChain | None = None
    """The files with the state; None without state, and in manifests of earlier releases."""
    unit: OpenUnit | None = None
    """The unit of event time that is not read to its end; None if all event times count."""


class _Stored(msgspec.Struct, rename="camel"):
    """The manifest as the offset entry stores it; messages are base64."""

    version: int
    epoch: Natural
    attempt: Natural
    run_id: str
    positions: tuple[Mapping[str, str], ...]
    messages: tuple[bytes, ...]
    state: tuple[PreparedState, ...]
    watermarks: tuple[Long, ...]
    marks_commit: bool = False
    published: Natural | UnsetType = UNSET
    chain: tuple[EpochRun, ...] | UnsetType = UNSET
    unit: OpenUnit | UnsetType | None = UNSET


def manifest_to_json(manifest: Manifest) -> dict[str, JsonValue]:
    """Return the manifest as the offset entry stores it."""
    chain = manifest.chain
    stored = _Stored(
        version=1 if chain is None else MANIFEST_VERSION,
        published=UNSET if chain is None else chain.published,
        chain=UNSET if chain is None else chain.runs,
        unit=UNSET if manifest.unit is None else manifest.unit,
        **_same(manifest),
    )
    fields: dict[str, JsonValue] = msgspec.json.decode(msgspec.json.encode(stored))
    return fields


def _same(of: Manifest | _Stored) -> dict[str, Any]:
    """Return what is the same in both."""
    names = "epoch", "attempt", "run_id", "positions", "messages", "state", "watermarks"
    return {name: getattr(of, name) for name in (*names, "marks_commit")}


def commit_mark(run_id: str) -> dict[str, JsonValue]:
    """Return what our commit entries have beside Spark's fields."""
    return {MANIFEST_KEY: {"runId": run_id}}


def is_finished_by_another(manifest: Manifest, commit: CommitEntry | None) -> bool:
    """Whether somebody else has run the epoch that we had decided: Spark, after we were killed."""
    return manifest.marks_commit and commit is not None and MANIFEST_KEY not in commit.extra


def ids_of(states: Sequence[PreparedState]) -> StateUniqueIds | None:
    """Return the ids in the names of an epoch's state files; None if the names have none.

    Spark lists the stores of a partition in the order of their names.
    """
    if not any(id_of_prepared(state.name) for state in states):
        return None
    ids: dict[int, tuple[tuple[str, ...], ...]] = {}
    for operator, of_operator in groupby(sorted(states, key=by_store), lambda s: s.operator):
        partitions = {
            partition: tuple(id_of_prepared(store.name) for store in stores)
            for partition, stores in groupby(of_operator, lambda s: s.partition)
        }
        if list(partitions) != list(range(len(partitions))) or "" in sum(partitions.values(), ()):
            raise EpochError(
                f"Operator {operator} has state of the partitions {list(partitions)}, but a commit "
                f"must name the files of every partition from 0 on. This is a bug."
            )
        ids[operator] = tuple(partitions.values())
    return ids


def is_live(states: Sequence[PreparedState], commit: CommitEntry | None) -> bool:
    """Return whether a commit names these versions, or has no ids to name them by.

    It does not if Spark ran the epoch again after it had been decided and not committed.
    """
    if commit is None or not commit.state_unique_ids:
        return True
    return ids_of(states) == commit.state_unique_ids


def manifest_of(entry: OffsetEntry, path: str, epoch: int | None = None) -> Manifest | None:
    """Return the manifest in an offset entry, None if it has none. Errors name the file, `path`.

    With `epoch`, a manifest of another epoch counts as none: an editing tool copied the metadata
    into a new entry. Only the offsets of that entry count then.
    """
    value = entry.extra.get(MANIFEST_KEY)
    manifest = None if value is None else manifest_from_json(value, path)
    if manifest is not None and epoch not in (None, manifest.epoch):
        return None
    return manifest


def manifest_from_json(value: JsonValue, path: str) -> Manifest:
    """Parse a manifest; MalformedFileError if any part of it is missing or malformed."""
    if not isinstance(value, dict):
        raise _malformed(path, f"it must be a JSON object, not {str(value)[:60]}")
    version = value.get("version")
    if isinstance(version, int) and version not in (1, MANIFEST_VERSION):
        readable = f"this release reads the versions 1 and {MANIFEST_VERSION}"
        raise _malformed(path, f"it has version {version}, but {readable}: use a newer release")
    try:
        stored = msgspec.convert(value, _Stored)
    except msgspec.ValidationError as error:
        raise _malformed(path, str(error)) from None
    for state in stored.state:
        is_negative = min(state.operator, state.partition, state.version) < 0
        if is_negative or "/" in state.store + state.name:
            raise _malformed(path, f"{str(state)[:80]} is not a state version")
    if len(set(map(by_store, stored.state))) < len(stored.state):
        raise _malformed(path, "it names two state versions of one store")
    chain = _chain(stored, path) if stored.version > 1 else None
    unit = None if stored.unit is UNSET else stored.unit
    return Manifest(chain=chain, unit=unit, **_same(stored))


def _chain(stored: _Stored, path: str) -> StateChain:
    published, runs, epoch = stored.published, stored.chain, stored.epoch
    if published is UNSET or runs is UNSET:
        raise _malformed(path, "published or chain is missing")
    chain = StateChain(published, runs)
    # A run that ends before it begins adds no epoch, so `is_gapless` does not see it.
    is_forward = all(run.first <= run.last for run in runs)
    if chain.version != epoch + 1 or not chain.is_gapless or not is_forward:
        named = ", ".join(f"{run.first} to {run.last}" for run in runs) or "none"
        reason = f"it names the epochs {named}, not all from {published} to {epoch}"
        raise _malformed(path, reason)
    return chain


def _malformed(path: str, reason: str) -> MalformedFileError:
    return MalformedFileError(path, f"its manifest cannot be used: {reason}")
