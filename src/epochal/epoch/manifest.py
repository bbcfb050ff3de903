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

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from epochal.checkpoint.entries import CommitEntry, OffsetEntry, StateUniqueIds
from epochal.checkpoint.layout import OWN_KEY
from epochal.checkpoint.spark_json import JsonValue, list_of, long_of, string_of
from epochal.epoch.epoch_files.state_chain import EpochRun, StateChain
from epochal.epoch.messages import PreparedState, by_store
from epochal.errors import EpochError, MalformedFileError
from epochal.state.files.chain import id_of_prepared

MANIFEST_KEY = OWN_KEY
MANIFEST_VERSION = 2
"""With epoch files. Version 1 has a state file per store, and is written by queries without state
too, so that earlier releases can read those."""


@dataclass(frozen=True, slots=True)
class OpenUnit:
    """A unit that is not read to its end: see `epochal.epoch.event_time.units`."""

    counted: tuple[int, ...]
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


def manifest_to_json(manifest: Manifest) -> dict[str, JsonValue]:
    """Return the manifest as the offset entry stores it; messages are base64."""
    found: dict[str, JsonValue] = {
        "version": 1 if manifest.chain is None else MANIFEST_VERSION,
        "epoch": manifest.epoch,
        "attempt": manifest.attempt,
        "runId": manifest.run_id,
        "positions": [dict(positions) for positions in manifest.positions],
        "messages": [base64.b64encode(message).decode() for message in manifest.messages],
        "state": [
            [each.operator, each.partition, each.store, each.version, each.name, each.checksum]
            for each in manifest.state
        ],
        "watermarks": list(manifest.watermarks),
        "marksCommit": manifest.marks_commit,
    }
    if manifest.chain is not None:
        found["published"] = manifest.chain.published
        found["chain"] = [
            [run.first, run.last, run.attempt, list(run.checksums)] for run in manifest.chain.runs
        ]
    if manifest.unit is not None:
        found["unit"] = {
            "counted": list(manifest.unit.counted),
            "ends": [dict(ends) for ends in manifest.unit.ends],
        }
    return found


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
    version = long_of(value, "version", path)
    if version not in (1, MANIFEST_VERSION):
        known = f"this release reads the versions 1 and {MANIFEST_VERSION}"
        raise _malformed(path, f"it has version {version}, but {known}: use a newer release")
    epoch, attempt = long_of(value, "epoch", path), long_of(value, "attempt", path)
    if epoch < 0 or attempt < 0:
        raise _malformed(path, f"epoch {epoch} and attempt {attempt} must not be negative")
    return Manifest(
        epoch=epoch,
        attempt=attempt,
        run_id=string_of(value, "runId", path),
        positions=tuple(_positions(each, path) for each in _listed(value, "positions", path)),
        messages=tuple(_message(each, path) for each in _listed(value, "messages", path)),
        state=_states(_listed(value, "state", path), path),
        watermarks=tuple(_long(each, path) for each in _listed(value, "watermarks", path)),
        marks_commit=_flag(value, "marksCommit", path),
        chain=_chain(value, epoch, path) if version > 1 else None,
        unit=_unit(value, path),
    )


def _unit(found: dict[str, JsonValue], path: str) -> OpenUnit | None:
    value = found.get("unit")
    if value is None:
        return None
    if not isinstance(value, dict):
        raise _malformed(path, f"unit must be a JSON object, not {str(value)[:60]}")
    counted = tuple(_long(each, path) for each in _listed(value, "counted", path))
    return OpenUnit(counted, tuple(_positions(each, path) for each in _listed(value, "ends", path)))


def _listed(found: dict[str, JsonValue], key: str, path: str) -> list[JsonValue]:
    if key not in found:
        raise _malformed(path, f"{key} is missing")
    return list_of(found, key, path)


def _positions(value: JsonValue, path: str) -> dict[str, str]:
    if not isinstance(value, dict):
        raise _malformed(path, f"positions must be JSON objects, not {str(value)[:60]}")
    return {partition: string_of(value, partition, path) for partition in value}


def _message(value: JsonValue, path: str) -> bytes:
    try:
        return base64.b64decode(str(value), validate=True)
    except (binascii.Error, ValueError):
        raise _malformed(path, f"a message is not base64: {str(value)[:60]}") from None


def _states(values: list[JsonValue], path: str) -> tuple[PreparedState, ...]:
    states = tuple(_state(value, path) for value in values)
    stores = {(each.operator, each.partition, each.store) for each in states}
    if len(stores) < len(states):
        raise _malformed(path, "it names two state versions of one store")
    return states


def _state(value: JsonValue, path: str) -> PreparedState:
    match value:
        case [int(operator), int(partition), str(store), int(version), str(name), int(checksum)]:
            if operator >= 0 and partition >= 0 and version >= 0 and "/" not in store + name:
                return PreparedState(operator, partition, store, version, name, checksum)
    raise _malformed(path, f"{str(value)[:80]} is not a state version")


def _chain(value: dict[str, JsonValue], epoch: int, path: str) -> StateChain:
    runs = tuple(_run(each, path) for each in _listed(value, "chain", path))
    chain = StateChain(long_of(value, "published", path), runs)
    if chain.version != epoch + 1 or not chain.is_gapless:
        named = ", ".join(f"{run.first} to {run.last}" for run in runs) or "none"
        reason = f"it names the epochs {named}, not all from {chain.published} to {epoch}"
        raise _malformed(path, reason)
    return chain


def _run(value: JsonValue, path: str) -> EpochRun:
    match value:
        case [int(first), int(last), int(attempt), [*checksums]] if 0 <= first <= last:
            return EpochRun(first, last, attempt, tuple(_long(each, path) for each in checksums))
    raise _malformed(path, f"{str(value)[:80]} is not a run of epochs")


def _long(value: JsonValue, path: str) -> int:
    return long_of({"watermarks": value}, "watermarks", path)


def _flag(found: dict[str, JsonValue], key: str, path: str) -> bool:
    value = found.get(key, False)
    if not isinstance(value, bool):
        raise _malformed(path, f"{key} must be true or false, not {str(value)[:60]}")
    return value


def _malformed(path: str, reason: str) -> MalformedFileError:
    return MalformedFileError(path, f"its manifest cannot be used: {reason}")
