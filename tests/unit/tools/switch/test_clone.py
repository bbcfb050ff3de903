"""A clone has what a restart after one epoch needs, and a query id of its own."""

from __future__ import annotations

import pytest
from tests.unit.checkpoint.samples import checkpoint, content

from epochal.checkpoint.file_log import FileSinkLog
from epochal.errors import EditError, OptionError
from epochal.files import Files
from epochal.testing.files import MemoryFiles
from epochal.tools.edit.edit_journal import Journal
from epochal.tools.edit.edit_plan import Plan
from epochal.tools.edit.survey import survey
from epochal.tools.switch.clone import CloneOptions, new_sink_log, plan_clone

NEW_ID = "0c6c1b9e-7a52-4f3e-9d0e-5a2f0f4d8f11"


def cloned(
    files: Files, *, at: int | None = None, until: int | None = None
) -> tuple[MemoryFiles, Plan]:
    target = MemoryFiles(prefix="there")
    plan = plan_clone(survey(files), target, CloneOptions(query_id=NEW_ID, at=at, until=until))
    Journal(target, places=[files]).execute(plan)
    return target, plan


def test_only_the_two_newest_entries_and_one_version_of_the_state_are_cloned() -> None:
    target, _ = cloned(checkpoint(6))
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
    target, _ = cloned(files)
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
        cloned(checkpoint(6), at=3, until=3)
    with pytest.raises(EditError, match=r"offsets/9\b.*the newest is 5"):
        cloned(checkpoint(6), at=3, until=9)


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
