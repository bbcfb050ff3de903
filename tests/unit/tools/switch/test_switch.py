"""A switch is refused where rows could be lost or repeated, and closes what it leaves."""

from __future__ import annotations

import pytest
from tests.unit.checkpoint.samples import QUERY_ID, checkpoint, commit, offsets, sink

from epochal.checkpoint.entries import QueryMetadata, Switched
from epochal.errors import CheckpointSwitchedError, EditError
from epochal.files import Files
from epochal.testing.files import MemoryFiles
from epochal.tools.edit.edit_file_log import survey_sink
from epochal.tools.edit.edit_journal import Journal
from epochal.tools.edit.edit_plan import Plan
from epochal.tools.edit.survey import survey
from epochal.tools.inspect.show import inspect
from epochal.tools.switch.clone import CloneOptions, plan_clone
from epochal.tools.switch.switch import (
    SwitchedOutput,
    plan_back,
    plan_existing,
    plan_new,
    read_switched,
)

NEW_ID = "0c6c1b9e-7a52-4f3e-9d0e-5a2f0f4d8f11"


def execute(home: Files, plan: Plan, *others: Files) -> None:
    Journal(home, places=others).execute(plan)


def cloned(files: Files) -> MemoryFiles:
    new = MemoryFiles(prefix="new")
    plan = plan_clone(survey(files), new, CloneOptions(query_id=NEW_ID))
    execute(new, plan, files)
    return new


def switched_over(files: Files) -> MemoryFiles:
    new = MemoryFiles(prefix="new")
    execute(new, plan_new(survey(files), new, NEW_ID), files)
    return new


def add_batch(files: Files, batch_id: int, offset: int | None = None) -> None:
    files.create(f"offsets/{batch_id}", offsets(batch_id if offset is None else offset))
    files.create(f"commits/{batch_id}", commit(batch_id))


def test_the_new_checkpoint_goes_on_where_the_old_one_ended_and_the_old_one_is_closed() -> None:
    old = checkpoint(6)
    new = switched_over(old)
    assert max(survey(new).commits) == 5
    assert QueryMetadata.read(new) == QueryMetadata(NEW_ID)
    with pytest.raises(CheckpointSwitchedError, match="after epoch 5 the query was switched to"):
        QueryMetadata.read(old)
    assert read_switched(old) == Switched(new.url, 5, 5, QUERY_ID)
    shown = inspect(old)  # it is no problem, as for `verify`; a restart says where the query is
    assert (shown.problems, new.url in shown.restart.reason) == ((), True)


def test_a_query_that_stopped_inside_an_epoch_is_refused() -> None:
    with pytest.raises(EditError, match="epoch 5 was begun but not committed"):
        plan_new(survey(checkpoint(6, uncommitted=True)), MemoryFiles(prefix="new"), NEW_ID)


def test_a_checkpoint_that_ends_elsewhere_is_refused() -> None:
    old = checkpoint(6)
    new = cloned(old)
    add_batch(new, 6)
    with pytest.raises(EditError, match=r'"logOffset":6.* but .* at .*"logOffset":5'):
        plan_existing(survey(old), survey(new), None)


def test_batches_that_edits_added_to_a_clone_are_added_to_the_sinks_log() -> None:
    old, output = checkpoint(6), sink(6)
    new = cloned(old)
    add_batch(new, 6, offset=5)
    plan = plan_existing(survey(old), survey(new), survey_sink(output))
    assert [(each.root, each.path) for each in plan.changes] == [
        ("origin", "metadata"),
        ("sink", "_spark_metadata/6"),
    ]
    execute(new, plan, old, output)
    assert read_switched(old) == Switched(new.url, 5, 6, QUERY_ID)


def test_a_file_sink_that_is_further_than_the_clone_would_skip_its_batches() -> None:
    old, output = checkpoint(6), sink(6)
    new = MemoryFiles(prefix="new")
    QueryMetadata(NEW_ID).write(new)
    add_batch(new, 3, offset=5)
    for path, _ in old.walk("sources"):
        new.create(path, old.read(path))
    with pytest.raises(EditError, match="The sink would skip the epochs up to it"):
        plan_existing(survey(old), survey(new), survey_sink(output))
    assert len(plan_existing(survey(old), survey(new), None).changes) == 1


def test_without_knowing_the_output_there_is_no_way_back_once_the_new_query_has_written() -> None:
    old = checkpoint(6)
    new = switched_over(old)
    add_batch(new, 6)
    with pytest.raises(EditError, match=rf"the epochs 6 to 6 since .* {NEW_ID}.*--sink"):
        plan_back(survey(old), survey(new), SwitchedOutput())
    plan = plan_back(survey(old), survey(new), SwitchedOutput(restored=True))
    assert "are written again" in plan.warnings[0]


def test_the_way_back_is_refused_while_it_is_unknown_what_the_new_query_wrote() -> None:
    old = checkpoint(6)
    new = switched_over(old)
    new.create("offsets/6", offsets(6))
    with pytest.raises(EditError, match="epoch 6 is not committed"):
        plan_back(survey(old), survey(new), SwitchedOutput(restored=True))


def test_there_is_no_way_back_from_where_nobody_went() -> None:
    with pytest.raises(EditError, match="was not switched"):
        read_switched(checkpoint(2))
