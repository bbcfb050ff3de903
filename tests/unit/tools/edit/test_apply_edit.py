"""An edit is applied only if no other program is seen to use the checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from tests.unit.checkpoint.samples import START_MS, checkpoint, content

from epochal.checkpoint.claim import Claim
from epochal.clock import Clock
from epochal.errors import CheckpointInUseError, EditError
from epochal.files import FileInfo, Files
from epochal.testing.clock import ManualClock
from epochal.testing.files import Crash, FaultyFiles, crash_after
from epochal.tools.edit.apply_edit import Conditions, apply, disturbances, require_quiet
from epochal.tools.edit.edit_journal import Journal
from epochal.tools.edit.edit_plan import Plan, Tree, read_tree
from epochal.tools.edit.rewind import plan_rewind
from epochal.tools.edit.survey import survey

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
