"""What a checkpoint demands of a query before it starts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from epochal.checkpoint.entries import CommitEntry, OffsetEntry, OffsetLog
from epochal.checkpoint.restart import STATE_FORMAT, conf_of_new_query
from epochal.continuous.run.take_over import AGGREGATION_FORMAT, FoundCheckpoint, find_checkpoint
from epochal.epoch.manifest import MANIFEST_KEY, Manifest, manifest_to_json
from epochal.epoch.messages import PreparedState
from epochal.errors import OptionError

SHUFFLE = "spark.sql.shuffle.partitions"


def found(changes: Mapping[str, str], commit: CommitEntry | None = None) -> FoundCheckpoint:
    conf = {**conf_of_new_query({}), **changes}
    return FoundCheckpoint("file:/ck", OffsetEntry(1, ("1",), conf=conf), commit)


def refusal(
    checkpoint: FoundCheckpoint, *operators: str, session: Mapping[str, str] | None = None
) -> str:
    with pytest.raises(OptionError) as refused:
        checkpoint.check(operators, session or {})
    return str(refused.value)


def test_a_missing_setting_has_the_value_from_before_it_existed() -> None:
    old = FoundCheckpoint("file:/ck", OffsetEntry(1, ("1",)))
    assert f"{AGGREGATION_FORMAT} = 1" in refusal(old, "stateStoreSave")


IDS = CommitEntry(version=2, state_unique_ids={0: (("a",),)})


@pytest.mark.parametrize(
    ("commit", "session", "expected"),
    [
        (IDS, "1", 2),
        (CommitEntry(), "2", 1),
        (CommitEntry(version=2, state_unique_ids={}), "1", 2),
        (None, "2", 2),
        (None, "1", 1),
    ],
)
def test_the_format_of_the_state_is_that_of_the_commits_or_the_sessions(
    commit: CommitEntry | None, session: str, expected: int
) -> None:
    assert found({}, commit).state_format({STATE_FORMAT: session}) == expected


@pytest.mark.parametrize(("name", "expected"), [("1.delta", 1), ("1_an-id.changelog", 2)])
def test_before_the_first_commit_the_decision_shows_the_format(name: str, expected: int) -> None:
    state = (PreparedState(0, 0, "default", 1, f"{name}.prepared-a1", 7),)
    manifest = manifest_to_json(Manifest(0, 1, "run", ({},), (), state))
    decided = OffsetEntry(1, ("1",), extra={MANIFEST_KEY: manifest})
    other = {STATE_FORMAT: str(3 - expected)}
    assert FoundCheckpoint("file:/ck", decided).state_format(other) == expected


def test_named_sources_are_refused_and_numbered_ones_are_not() -> None:
    named = FoundCheckpoint("file:/ck", OffsetEntry(2, {"orders": "1"}))
    assert "has named sources (orders)" in refusal(named)
    FoundCheckpoint("file:/ck", OffsetEntry(2, {"0": "1"})).check((), {})


def test_the_number_of_state_partitions_is_pinned_or_the_sessions() -> None:
    assert FoundCheckpoint().partitions({}) == 200
    assert FoundCheckpoint().partitions({SHUFFLE: "7"}) == 7
    assert found({SHUFFLE: "5"}).partitions({SHUFFLE: "7"}) == 5


def test_a_batch_that_was_set_aside_still_pins_its_settings(tmp_path: Path) -> None:
    assert find_checkpoint(str(tmp_path / "none")).pinned is None
    assert not (tmp_path / "none").exists()
    entry = OffsetEntry(1, ("1",), conf={"k": "v"})
    OffsetLog(str(tmp_path / "ck" / ".epochal" / "planned")).add(0, entry)
    assert find_checkpoint(str(tmp_path / "ck")).pinned == {"k": "v"}
