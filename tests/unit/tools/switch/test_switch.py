"""A clone has what a restart needs; a switch loses no rows, and closes what it leaves."""

from __future__ import annotations

import pytest
from tests.unit.checkpoint.samples import QUERY_ID, checkpoint, commit, content, offsets, sink

from epochal.checkpoint.entries import QueryMetadata, Switched
from epochal.checkpoint.file_log import FileSinkLog
from epochal.errors import CheckpointSwitchedError, EditError, OptionError
from epochal.files import Files
from epochal.testing.files import MemoryFiles
from epochal.tools.edit.edit_file_log import survey_sink
from epochal.tools.edit.edit_journal import Journal
from epochal.tools.edit.edit_plan import Plan
from epochal.tools.edit.survey import survey
from epochal.tools.inspect.show import inspect
from epochal.tools.switch.clone import CloneOptions, new_sink_log, plan_clone
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


def test_the_way_back_opens_the_old_one_and_closes_the_new_one() -> None:
    old = checkpoint(6)
    before = {path: data for path, data in content(old).items() if ".metadata" not in path}
    new = switched_over(old)
    execute(old, plan_back(survey(old), survey(new), SwitchedOutput()), new)
    after = {path: data for path, data in content(old).items() if ".metadata" not in path}
    assert after == before
    with pytest.raises(CheckpointSwitchedError):
        QueryMetadata.read(new)


def test_the_way_back_takes_the_new_querys_files_out_of_the_sinks_log() -> None:
    old, output = checkpoint(6), sink(6)
    new = switched_over(old)
    add_batch(new, 6)
    written = sink(7).read("_spark_metadata/6")
    output.create("_spark_metadata/6", written)
    output.create("part-6.parquet", b"rows of 6")
    execute(
        old, plan_back(survey(old), survey(new), SwitchedOutput(survey_sink(output))), new, output
    )
    assert output.info("_spark_metadata/6") is None
    assert output.info("part-6.parquet") is None
    assert output.info("part-5.parquet") is not None


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


def a_clone(
    files: Files, *, at: int | None = None, until: int | None = None
) -> tuple[MemoryFiles, Plan]:
    target = MemoryFiles(prefix="there")
    plan = plan_clone(survey(files), target, CloneOptions(query_id=NEW_ID, at=at, until=until))
    Journal(target, places=[files]).execute(plan)
    return target, plan


def test_only_the_two_newest_entries_and_one_version_of_the_state_are_cloned() -> None:
    target, _ = a_clone(checkpoint(6))
    assert {path for path in content(target) if not path.startswith("sources/")} == {
        "metadata",
        *(f"{log}/{each}" for log in ("offsets", "commits") for each in (4, 5)),
        *(f"state/0/{partition}/3.snapshot" for partition in (0, 1)),
        *(f"state/0/{partition}/{each}.delta" for partition in (0, 1) for each in (4, 5, 6)),
    }
    assert NEW_ID.encode() in target.read("metadata")


def test_of_our_own_files_only_the_plan_of_the_state_is_cloned() -> None:
    files = checkpoint(4)
    for path in ("plan", "attempts/3", "delta/e4-rows", "planned/4", "letters/e4"):
        files.create(f".epochal/{path}", b"ours")
    target, _ = a_clone(files)
    ours = {path for path, _ in target.walk(".epochal") if not path.startswith(".epochal/journal")}
    assert ours == {".epochal/plan"}


def test_files_that_appear_while_the_query_is_cloned_are_left_out() -> None:
    files, later = checkpoint(6), checkpoint(8)
    surveyed, target = survey(files), MemoryFiles(prefix="there")
    plan = plan_clone(surveyed, target, CloneOptions(query_id=NEW_ID))
    for path, data in content(later).items():
        if files.info(path) is None:
            files.create(path, data)
    Journal(target, places=[files]).execute(plan)
    assert max(survey(target).offsets) == 5


def test_a_file_that_vanishes_while_the_query_is_cloned_leaves_nothing_behind() -> None:
    files, target = checkpoint(6), MemoryFiles(prefix="there")
    plan = plan_clone(survey(files), target, CloneOptions(query_id=NEW_ID))
    files.delete("state/0/0/4.delta")
    with pytest.raises(FileNotFoundError):
        Journal(target, places=[files]).execute(plan)
    assert Journal(target).unfinished() is None
    assert content(target) == {}


def test_an_epoch_cannot_be_planned_to_end_before_it_begins_or_where_nothing_is_logged() -> None:
    with pytest.raises(OptionError, match=r"--until 3 must be later than .* 3"):
        a_clone(checkpoint(6), at=3, until=3)
    with pytest.raises(EditError, match=r"offsets/9\b.*the newest is 5"):
        a_clone(checkpoint(6), at=3, until=9)


@pytest.mark.parametrize("interval", [1, 2, 3, 5, 7, 10, 16])
@pytest.mark.parametrize("batch", [0, 1, 5, 9, 10, 18, 19, 20, 27, 41, 100])
def test_a_sink_log_that_was_begun_in_the_middle_goes_on_with_any_interval(
    interval: int, batch: int
) -> None:
    output = MemoryFiles(prefix="out")
    for change in new_sink_log(output, batch):
        assert isinstance(change.after, bytes)
        output.create(change.path, change.after)
    for number in range(batch + 1, batch + 45):
        log = FileSinkLog(output.at("_spark_metadata"), compact_interval=interval)
        assert log.latest_batch_id() == number - 1
        assert log.add(number, ())
        assert log.all_files() == []


def test_a_directory_with_a_sinks_log_is_refused_as_a_new_output() -> None:
    output = MemoryFiles(prefix="out")
    output.create("_spark_metadata/0", b"v1")
    with pytest.raises(EditError, match="a file sink has written to this directory before"):
        list(new_sink_log(output, 3))
