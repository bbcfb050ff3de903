"""A manifest is read back as it was written, or not at all, and the error names the file."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest

from epochal.checkpoint.entries import OFFSET_FORMAT, CommitEntry, OffsetEntry
from epochal.checkpoint.layout import JOIN_STORES
from epochal.epoch.epoch_files.state_chain import EpochRun, StateChain
from epochal.epoch.manifest import (
    MANIFEST_KEY,
    Manifest,
    ids_of,
    is_live,
    manifest_from_json,
    manifest_of,
    manifest_to_json,
)
from epochal.epoch.messages import PreparedState
from epochal.errors import EpochError, MalformedFileError

PATH = "file:/checkpoint/offsets/7"
STATE = PreparedState(0, 3, "default", 8, "8.delta.prepared-a2", 4_000_000_000)
MANIFEST = Manifest(
    epoch=7,
    attempt=2,
    run_id="run-a",
    positions=({"0": '{"offset":17}', "1": "ä\n"}, {}),
    messages=(b"", b"\x00\xff rows"),
    state=(STATE, PreparedState(0, 3, "left", 8, "8.delta.prepared-a2", 0)),
    watermarks=(-1, 1_700_000_000_000),
)


WITH_FILES = replace(
    MANIFEST,
    state=(),
    chain=StateChain(5, (EpochRun(5, 5, 1, (1,)), EpochRun(6, 7, 2, (2, 4_000_000_000)))),
)


def changed(**fields: Any) -> dict[str, Any]:
    given = WITH_FILES if fields.keys() & {"published", "chain"} else MANIFEST
    value: dict[str, Any] = copy.deepcopy(manifest_to_json(given))
    value.update(fields)
    return value


def test_a_manifest_is_read_back_as_it_was_written() -> None:
    assert manifest_from_json(manifest_to_json(MANIFEST), PATH) == MANIFEST


def test_with_epoch_files_it_has_a_version_that_earlier_releases_refuse() -> None:
    written = manifest_to_json(WITH_FILES)
    assert manifest_from_json(written, PATH) == WITH_FILES
    assert (written["version"], manifest_to_json(MANIFEST)["version"]) == (2, 1)
    assert written["published"] == 5
    assert written["chain"] == [[5, 5, 1, [1]], [6, 7, 2, [2, 4_000_000_000]]]


def test_it_travels_in_the_metadata_of_an_offset_entry() -> None:
    entry = OffsetEntry(1, ('{"0":17}', None), extra={MANIFEST_KEY: manifest_to_json(MANIFEST)})
    read = OFFSET_FORMAT.deserialize(OFFSET_FORMAT.serialize(entry), PATH)
    assert manifest_of(read, PATH) == MANIFEST
    assert manifest_of(read, PATH, 7) == MANIFEST
    assert manifest_of(OffsetEntry(1, ()), PATH) is None


def test_a_manifest_that_was_carried_into_another_entry_does_not_count_there() -> None:
    entry = OffsetEntry(1, ("17",), extra={MANIFEST_KEY: manifest_to_json(MANIFEST)})
    assert manifest_of(entry, PATH, 8) is None


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("version", 2),
        ("version", 3),
        ("version", "1"),
        ("published", None),
        ("chain", None),
        ("chain", [[5, 7, 2]]),
        ("chain", [[8, 7, 2, [1]]]),
        ("chain", [[5, 6, 2, [1]]]),
        ("chain", [[6, 7, 2, [1]]]),
        ("chain", [[5, 7, 2, ["1"]]]),
        ("chain", [[9, 8, 1, [1]], [5, 7, 2, [2]]]),
        ("chain", [[5, 7, 2, [1], 0]]),
        ("published", 2**63),
        ("epoch", -1),
        ("attempt", -1),
        ("attempt", None),
        ("attempt", 2.5),
        ("runId", None),
        ("positions", {"0": "x"}),
        ("positions", ["x"]),
        ("positions", [{"0": 17}]),
        ("messages", ["not base64!"]),
        ("messages", [17]),
        ("messages", "AA=="),
        ("state", [[0, 3, "default", 8, "8.delta.prepared-a2"]]),
        ("state", [[0, 3, "default", "8", "8.delta.prepared-a2", 1]]),
        ("state", [[0, -3, "default", 8, "8.delta.prepared-a2", 1]]),
        ("state", [[0, 3, "default", 8, "../../elsewhere", 1]]),
        ("state", [[0, 3, "default", 8, "a", 1], [0, 3, "default", 8, "b", 1]]),
        ("watermarks", ["now"]),
        ("watermarks", 5),
        ("watermarks", [2**63]),
        ("unit", {"counted": [-(2**63) - 1], "ends": []}),
        ("marksCommit", 1),
    ],
)
def test_a_field_that_is_not_as_it_was_written_is_refused_by_the_files_name(
    field: str, value: Any
) -> None:
    with pytest.raises(MalformedFileError) as refused:
        manifest_from_json(changed(**{field: value}), PATH)
    assert refused.value.path == PATH


def test_a_chain_before_the_first_epoch_is_refused() -> None:
    with pytest.raises(MalformedFileError, match="published"):
        manifest_from_json(changed(published=-1, chain=[[-1, 7, 2, [1]]]), PATH)


INCOMPLETE = [
    {name: value for name, value in changed().items() if name != field}
    for field in sorted(manifest_to_json(MANIFEST).keys() - {"marksCommit"})
]


@pytest.mark.parametrize("value", [*INCOMPLETE, [], "x", 5, True])
def test_what_lacks_a_field_or_is_no_object_is_refused(value: Any) -> None:
    with pytest.raises(MalformedFileError) as refused:
        manifest_from_json(value, PATH)
    assert refused.value.path == PATH


def state(operator: int, partition: int, store: str, unique_id: str) -> PreparedState:
    name = f"7_{unique_id}.changelog" if unique_id else "7.changelog"
    return PreparedState(operator, partition, store, 7, f"{name}.prepared-a2", 1)


JOIN = [state(1, 0, name, f"j{n}") for n, name in enumerate(JOIN_STORES)]
PLAIN = [state(0, 1, "default", "b"), state(0, 0, "default", "a")]


def test_a_commit_names_the_ids_by_operator_partition_and_store() -> None:
    found = ids_of([*reversed(JOIN), *PLAIN])
    assert found == {0: (("a",), ("b",)), 1: (("j0", "j1", "j2", "j3"),)}
    commit = CommitEntry(2, state_unique_ids=found)
    for each in (*JOIN, *PLAIN):
        unique_id = commit.state_id(each.operator, each.partition, each.store)
        assert each.name.startswith(f"7_{unique_id}.")
    assert commit.state_id(2, 0, "default") == commit.state_id(0, 2, "default") == ""


def test_names_without_ids_make_no_list() -> None:
    assert ids_of([state(0, 0, "default", "")]) is None
    assert ids_of([]) is None


@pytest.mark.parametrize(
    "states", [PLAIN[:1], [*PLAIN, state(0, 2, "default", "")], [state(3, 1, "default", "x")]]
)
def test_a_list_with_a_gap_is_refused(states: list[PreparedState]) -> None:
    with pytest.raises(EpochError, match="every partition from 0 on"):
        ids_of(states)


def test_state_is_live_unless_the_commit_names_other_files() -> None:
    assert is_live(PLAIN, None)
    assert is_live(PLAIN, CommitEntry())
    assert is_live(PLAIN, CommitEntry(2, state_unique_ids=ids_of(PLAIN)))
    assert not is_live(PLAIN, CommitEntry(2, state_unique_ids={0: (("a",), ("c",))}))
