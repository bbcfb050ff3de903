"""Copies with all files but crcs, and edits that wait until no program uses the checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from tests.unit.checkpoint.samples import START_MS, checkpoint, content, sink

from epochal.checkpoint.claim import Claim
from epochal.checkpoint.file_log import FileSourceLog
from epochal.checkpoint.operator_metadata import (
    OPERATOR_FORMAT,
    OperatorMetadata,
    StoreMetadata,
    read_operator,
)
from epochal.clock import Clock
from epochal.errors import CheckpointInUseError, EditError, OptionError
from epochal.files import FileInfo, Files
from epochal.testing.clock import ManualClock
from epochal.testing.files import Crash, FaultyFiles, MemoryFiles, crash_after
from epochal.tools.edit.apply_edit import Conditions, apply, disturbances, require_quiet
from epochal.tools.edit.copy_checkpoint import move_path, plan_copy
from epochal.tools.edit.edit_file_log import survey_sink
from epochal.tools.edit.edit_journal import Journal
from epochal.tools.edit.edit_plan import Plan, Tree, is_crc, read_tree
from epochal.tools.edit.rewind import plan_rewind
from epochal.tools.edit.survey import survey


def journal(target: Files, *roots: Files) -> Journal:
    return Journal(target, places=roots)


def copied(files: Files, target: Files, moved: dict[str, str] | None = None) -> Plan:
    plan = plan_copy(survey(files), target, moved or {})
    journal(target, files).execute(plan)
    return plan


def test_everything_is_copied_but_hidden_crcs_and_temporary_files() -> None:
    files, target = checkpoint(4), MemoryFiles(prefix="there")
    files.create("offsets/.5.0c1f.tmp", b"half")
    copied(files, target)
    kept = {
        path: data
        for path, data in content(files).items()
        if not is_crc(path) and not path.endswith(".tmp")
    }
    assert content(target) == kept


def test_what_a_continuous_query_needs_to_go_on_is_copied_and_its_claims_are_not() -> None:
    files, target = checkpoint(2), MemoryFiles(prefix="there")
    needed = {
        ".epochal/plan": b"the operators",
        ".epochal/planned/2": b"the batch that Spark planned",
        ".epochal/kafka/e2-a1-t0-0123abcd.arrow": b"rows of an epoch that is decided",
        ".epochal/letters/e2-a1-t0-0123abcd.arrow": b"its dead letters",
    }
    for path, data in needed.items():
        files.create(path, data)
    for own in ("attempts/0", "lease/run", "stop/run", "journal/0001-put/plan.json", "stage/x"):
        files.create(f".epochal/{own}", b"of a run or an edit")
    copied(files, target)
    there = {path: target.read(path) for path, _ in target.walk(".epochal")}
    assert {path: there[path] for path in there if "/journal/" not in path} == needed
    assert {path.split("/")[2] for path in there if "/journal/" in path} == {"0001-copy"}
    journal(target, files).undo()
    assert [path for path, _ in target.walk(".epochal") if "/journal/" not in path] == []


def test_what_was_read_back_is_held_against_what_was_copied() -> None:
    files, target = checkpoint(2), MemoryFiles(prefix="there")
    copied(files, target)
    entry = Journal(target).entries()[0]
    journal(target, files).verify(entry.id)
    target.replace("offsets/1", b"bad disk")
    with pytest.raises(EditError, match="offsets/1"):
        journal(target, files).verify(entry.id)


def test_a_place_that_is_not_empty_is_refused() -> None:
    target = MemoryFiles(prefix="there")
    target.create("offsets/0", b"another life")
    with pytest.raises(EditError, match=r"is not empty \(offsets/0\)"):
        plan_copy(survey(checkpoint(2)), target, {})


def test_a_place_inside_the_checkpoint_is_refused() -> None:
    files = checkpoint(2)
    with pytest.raises(OptionError, match="lie inside each other"):
        plan_copy(survey(files), files.at("state/copy"), {})


def test_schema_paths_of_operators_follow_the_checkpoint() -> None:
    files, target = checkpoint(2), MemoryFiles(prefix="there")
    old = "file:/old/place/state/0/_stateSchema/default/0_ab"
    entry = OperatorMetadata(
        2, 0, "transformWithStateExec", (StoreMetadata(schema_file_paths=(old,)),), "{}"
    )
    files.create("state/0/_metadata/v2/0", OPERATOR_FORMAT.serialize(entry))
    copied(files, target)
    found = read_operator(target, 0)
    assert found is not None
    assert found.stores[0].schema_file_paths == ("memory:/there/state/0/_stateSchema/default/0_ab",)


def test_a_source_log_follows_only_what_the_map_moves() -> None:
    files, target = checkpoint(11), MemoryFiles(prefix="there")
    copied(files, target, {"/data/in": "/mnt/new place"})
    log = FileSourceLog(target.at("sources/0"), read_only=True)
    assert [entry.path for entry in log.all_files()] == [
        f"file:///mnt/new%20place/{batch_id:03}.json" for batch_id in range(11)
    ]
    plain = MemoryFiles(prefix="plain")
    plan = copied(files, plain, {"/elsewhere": "/x"})
    assert plain.read("sources/0/3") == files.read("sources/0/3")
    assert "No path in the log of a source begins with one of the mapped prefixes." in plan.warnings


def test_a_moved_sinks_log_follows_the_map_in_place() -> None:
    files, output, target = checkpoint(2), sink(2), MemoryFiles(prefix="there")
    plan = plan_copy(
        survey(files), target, {"memory:/out": "memory:/new"}, sink=survey_sink(output)
    )
    assert [change.path for change in plan.changes if change.root == "sink"] == [
        "_spark_metadata/0",
        "_spark_metadata/1",
    ]
    journal(target, files, output).execute(plan)
    assert b"memory:/new/part-0.parquet" in output.read("_spark_metadata/0")


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("file:///a/b/c.json", "file:///z/c.json"),
        ("file:/a/b/c.json", "file:/z/c.json"),
        ("/a/b/c.json", "/z/c.json"),
        ("file:///a/b", "file:///z"),
        ("file:///a/bc/d.json", "file:///a/bc/d.json"),
        ("s3a://bucket/x/y.json", "s3a://other/y.json"),
        ("file:///sp%20ace/y.json", "s3a://bucket/y.json"),
    ],
)
def test_logged_paths_keep_the_way_they_are_written(path: str, expected: str) -> None:
    moved = {"/a/b": "/z", "s3a://bucket/x": "s3a://other", "/sp ace": "s3a://bucket/"}
    assert move_path(path, moved) == expected


def test_a_copy_that_is_killed_anywhere_is_finished_or_says_that_it_is_whole() -> None:
    files, said = checkpoint(2), set()
    for operations in range(200):
        target = MemoryFiles(prefix="there")
        plan = plan_copy(survey(files), target, {})
        try:
            Journal(FaultyFiles(target, crash_after(operations)), places=(files,)).execute(plan)
        except Crash:
            again = journal(target, files)
            if (left := again.unfinished()) is not None:
                again.finish(left.id)
                said.add("finished")
                continue
        if not content(target):
            copied(files, target)
            said.add("copied")
            continue
        undo = f"epochal checkpoint undo {target.url} --execute"
        with pytest.raises(EditError, match=f"it has a whole copy of {files.url}.*{undo}"):
            copied(files, target)
        said.add("whole")
    assert said == {"copied", "finished", "whole"}


A_DAY_MS = 86_400_000


@dataclass(slots=True)
class BusyClock:
    """A clock that runs a function during each sleep."""

    inner: ManualClock
    meanwhile: Callable[[], None]

    def now_ms(self) -> int:
        return self.inner.now_ms()

    def monotonic(self) -> float:
        return self.inner.monotonic()

    def uptime(self) -> float:
        return self.inner.uptime()

    def sleep(self, seconds: float) -> None:
        self.inner.sleep(seconds)
        self.meanwhile()


def conditions(clock: Clock | None = None, *, even_if_busy: bool = False) -> Conditions:
    return Conditions(
        run_id="tool-1",
        settle_seconds=2,
        even_if_busy=even_if_busy,
        clock=clock or ManualClock(START_MS + A_DAY_MS),
    )


def rewinding(files: Files) -> Callable[[], Plan]:
    return lambda: plan_rewind(survey(files), 3)


def test_a_quiet_checkpoint_is_edited_and_the_claim_given_back() -> None:
    files = checkpoint(6)
    applied = apply(files, "rewind", rewinding(files), conditions())
    assert applied.entry is not None
    assert (applied.entry.id, applied.finished_earlier) == ("0001-rewind", False)
    assert "offsets/4" not in content(files)
    Claim.acquire(files, "next", purpose="a query", background=False).release()


def test_nothing_to_change_leaves_no_journal() -> None:
    files = checkpoint(6)
    before = content(files)
    applied = apply(files, "rewind", lambda: plan_rewind(survey(files), 5), conditions())
    assert applied.entry is None
    assert Journal(files).entries() == []
    assert content(files) == before


def test_a_live_run_that_holds_the_claim_is_not_disturbed() -> None:
    files = checkpoint(6)
    clock = ManualClock(START_MS)
    with (
        Claim.acquire(files, "query-7", purpose="a query", clock=clock, background=False),
        pytest.raises(CheckpointInUseError, match="in use by run query-7"),
    ):
        apply(files, "rewind", rewinding(files), conditions(clock, even_if_busy=True))
    assert "offsets/5" in content(files)


@pytest.mark.parametrize("event", ["appeared", "vanished", "changed"])
def test_a_checkpoint_that_moves_while_watched_is_left_alone(event: str) -> None:
    files = checkpoint(6)
    happening = {
        "appeared": lambda: files.create("offsets/6", b"v1"),
        "vanished": lambda: files.delete("commits/0"),
        "changed": lambda: files.replace("commits/5", b"v1"),
    }
    clock = BusyClock(ManualClock(START_MS + A_DAY_MS), happening[event])
    with pytest.raises(CheckpointInUseError, match=f"{event}"):
        apply(files, "rewind", rewinding(files), conditions(clock))
    assert Journal(files).entries() == []


def test_a_fresh_temporary_file_means_that_somebody_is_writing() -> None:
    path = "state/0/0/.7.delta.0c1f.TID7.tmp"
    info = FileInfo(".7.delta.0c1f.TID7.tmp", False, 10, START_MS)
    tree = Tree({path: info})
    assert disturbances(tree, tree, START_MS + 1000) == [f"{path} is being written"]
    assert disturbances(tree, tree, START_MS + A_DAY_MS) == []


def test_a_busy_checkpoint_is_edited_if_the_caller_insists() -> None:
    files = checkpoint(6)
    clock = BusyClock(ManualClock(START_MS + A_DAY_MS), lambda: files.delete("commits/0"))
    applied = apply(files, "rewind", rewinding(files), conditions(clock, even_if_busy=True))
    assert applied.entry is not None


def test_the_tools_own_files_are_no_disturbance() -> None:
    files = checkpoint(6)
    clock = BusyClock(
        ManualClock(START_MS + A_DAY_MS), lambda: files.create(".epochal/lease/x", b"")
    )
    require_quiet(files, conditions(clock))


def test_the_plan_is_made_after_the_checkpoint_was_found_quiet() -> None:
    files = checkpoint(6)
    asked: list[int] = []

    def plan() -> Plan:
        asked.append(len(read_tree(files).infos))
        return plan_rewind(survey(files), 3)

    clock = BusyClock(ManualClock(START_MS + A_DAY_MS), lambda: files.create("offsets/6", b"v1"))
    with pytest.raises(CheckpointInUseError):
        apply(files, "rewind", plan, conditions(clock))
    assert asked == []


def interrupted() -> Files:
    files = checkpoint(6)
    with pytest.raises(Crash):
        Journal(FaultyFiles(files, crash_after(8))).execute(plan_rewind(survey(files), 3))
    return files


def test_another_command_does_not_touch_what_was_interrupted() -> None:
    files = interrupted()
    before = content(files)
    with pytest.raises(EditError, match=r"the rewind 0001-rewind was interrupted"):
        apply(files, "set-offsets", rewinding(files), conditions())
    assert content(files) == before


def test_a_claim_lost_half_way_stops_the_edit() -> None:
    files = checkpoint(6)
    clock = ManualClock(START_MS + A_DAY_MS)

    def sleepy(done: int, total: int) -> None:
        del total
        if done == 3:
            clock.advance(3600)

    with pytest.raises(EditError, match="lost its claim"):
        apply(files, "rewind", rewinding(files), conditions(clock), sleepy)
    assert content(files) == content(checkpoint(6))
