from __future__ import annotations

import pytest

from epochal.checkpoint.entries import CommitEntry
from epochal.checkpoint.layout import JOIN_STORES
from epochal.epoch.messages import PreparedState
from epochal.epoch.state_ids import ids_of, is_live
from epochal.errors import EpochError


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
