"""A query is asked to stop by a file in its checkpoint, and the checkpoint shows whether it has."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from epochal.checkpoint.claim import ATTEMPT_FORMAT, QUERY_PURPOSE, Claim
from epochal.checkpoint.entries import CommitEntry, CommitLog, OffsetEntry, OffsetLog
from epochal.checkpoint.layout import ATTEMPTS, COMMITS, OFFSETS, STOPS
from epochal.checkpoint.metadata_log import MetadataLog
from epochal.checkpoint.spark_json import JsonValue
from epochal.checkpoint.stop_request import forget_other_stops, is_stop_requested, request_stop
from epochal.cli.main import main
from epochal.errors import CheckpointInUseError, EditError, NotStoppedError
from epochal.files.local import LocalFiles
from epochal.testing.clock import ManualClock
from epochal.testing.files import MemoryFiles
from epochal.tools.switch.stop_query import Ending, StoppedQuery, stop_query

OURS: dict[str, JsonValue] = {"epochal": {"version": 1}}


class Acting(ManualClock):
    """A clock on which something happens each time the command has looked and waits."""

    def __init__(self, act: Callable[[int], None] = lambda _turn: None) -> None:
        super().__init__()
        self.act, self.turns = act, 0

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        self.turns += 1
        self.act(self.turns)


class World:
    """A checkpoint with committed epochs, and a query that owns it."""

    def __init__(self, *, committed: int = 3, ours: bool = True) -> None:
        self.clock = Acting()
        self.files = MemoryFiles(clock=self.clock)
        extra: dict[str, JsonValue] = OURS if ours else {}
        for epoch in range(committed + 1):
            OffsetLog(self.files.at(OFFSETS)).add(epoch, OffsetEntry(1, ("{}",), extra=extra))
            CommitLog(self.files.at(COMMITS)).add(epoch, CommitEntry(extra=extra))

    def claim(self, run_id: str = "run-a", purpose: str = QUERY_PURPOSE) -> Claim:
        return Claim.acquire(
            self.files, run_id, purpose=purpose, clock=self.clock, background=False
        )

    def stop(self, timeout_seconds: float = 60.0) -> StoppedQuery:
        return stop_query(self.files, timeout_seconds=timeout_seconds, clock=self.clock)

    def requests(self) -> list[str]:
        return [info.name for info in self.files.list(STOPS)]


def test_the_run_that_owns_the_checkpoint_is_asked_and_its_end_is_waited_for() -> None:
    world = World()
    claim = world.claim()
    seen = []

    def query(turn: int) -> None:
        claim.renew()
        seen.append(is_stop_requested(world.files, "run-a"))
        if turn == 3:
            claim.release()

    world.clock.act = query
    assert world.stop() == StoppedQuery("run-a", Ending.STOPPED, 3)
    assert (seen, world.requests()) == ([True] * 3, [])


def test_a_new_run_deletes_requests_to_earlier_runs_and_keeps_its_own() -> None:
    world = World()
    for run_id in ("run-a", "run-b", "run-c"):
        request_stop(world.files, run_id, asked_by="a test", now_ms=0)
    forget_other_stops(world.files, "run-c")
    assert world.requests() == ["run-c"]


def test_a_driver_that_is_silent_for_longer_than_its_lease_has_died() -> None:
    world = World()
    elsewhere = replace_owner(world, world.claim(), machine="another/host")

    def renew_for_a_while(turn: int) -> None:
        if turn < 10:
            elsewhere.renew()

    world.clock.act = renew_for_a_while
    stopped = world.stop(timeout_seconds=600)
    assert stopped == StoppedQuery("run-a", Ending.DIED, 3)
    assert 30 < world.clock.monotonic() < 40  # after its last renewal
    assert world.requests() == []


def test_a_driver_that_is_killed_after_it_saw_the_request_is_noticed_at_once(
    tmp_path: Path,
) -> None:
    files = LocalFiles(tmp_path)
    command = [sys.executable, "-c", OWNER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        said = child.stdout
        assert said is not None
        assert said.readline() == "ready\n"

        def kill(_turn: int) -> None:
            assert said.readline() == "asked\n"
            child.kill()
            child.wait()

        clock = Acting(kill)
        stopped = stop_query(files, timeout_seconds=600, clock=clock)
    assert (stopped.run_id, stopped.ending, clock.turns) == ("run-a", Ending.DIED, 1)
    # The next run owns the checkpoint, and the request does not concern it.
    request_stop(files, "run-a", asked_by="late", now_ms=0)
    with Claim.acquire(files, "run-b", purpose=QUERY_PURPOSE):
        forget_other_stops(files, "run-b")
        assert not is_stop_requested(files, "run-b")
    assert [info.name for info in files.list(STOPS)] == []


OWNER = """
import sys, time
from epochal.checkpoint.claim import Claim, QUERY_PURPOSE
from epochal.checkpoint.stop_request import is_stop_requested
from epochal.files.local import LocalFiles

files = LocalFiles(sys.argv[1])
claim = Claim.acquire(files, "run-a", purpose=QUERY_PURPOSE)
print("ready", flush=True)
while not is_stop_requested(files, "run-a"):
    time.sleep(0.01)
print("asked", flush=True)
time.sleep(600)
"""


def test_a_query_that_does_not_stop_in_time_keeps_the_request() -> None:
    world = World()
    claim = world.claim()

    def go_on(_turn: int) -> None:
        claim.renew()

    world.clock.act = go_on
    with pytest.raises(NotStoppedError, match=r"still runs after 60 s.*\.epochal/stop/run-a"):
        world.stop()
    assert world.requests() == ["run-a"]


def test_a_supervisor_that_starts_the_query_again_is_told_of() -> None:
    world = World()
    claim = world.claim()

    def restart(_turn: int) -> None:
        claim.release()
        world.claim("run-b")

    world.clock.act = restart
    with pytest.raises(NotStoppedError, match=r"run run-a .* run run-b \(continuous query\)"):
        world.stop()


@pytest.mark.parametrize("has_taken_over", [False, True])
def test_a_query_of_sparks_cannot_be_asked(has_taken_over: bool) -> None:
    world = World(ours=has_taken_over)
    if has_taken_over:
        world.claim().release()
        OffsetLog(world.files.at(OFFSETS)).add(4, OffsetEntry(1, ("{}",)))
    with pytest.raises(EditError, match="query of Spark's cannot be asked to stop"):
        world.stop()
    assert world.requests() == []


def test_an_edit_is_not_asked() -> None:
    world = World()
    world.claim(purpose="rewind")
    with pytest.raises(CheckpointInUseError, match="rewind"):
        world.stop()
    assert world.requests() == []


def test_a_query_that_has_ended_already_needs_no_request() -> None:
    world = World()
    world.claim().release()
    assert world.stop() == StoppedQuery("run-a", Ending.ENDED_BEFORE, 3)
    assert (world.clock.turns, world.requests()) == (0, [])


def test_an_epoch_that_is_not_committed_is_owed() -> None:
    world = World()
    claim = world.claim()
    OffsetLog(world.files.at(OFFSETS)).add(4, OffsetEntry(1, ("{}",), extra=OURS))
    world.clock.act = lambda _turn: claim.release()
    stopped = world.stop()
    assert (stopped.epoch, stopped.owed.partition(".")[0]) == (
        3,
        "epoch 4 was begun but is not committed",
    )


def replace_owner(world: World, claim: Claim, machine: str) -> Claim:
    """Let the attempt look as if another host had made it."""
    log = MetadataLog(world.files.at(ATTEMPTS), ATTEMPT_FORMAT)
    found = log.get_latest()
    assert found is not None
    content = ATTEMPT_FORMAT.serialize(replace(found[1], machine=machine))
    world.files.replace(f"{ATTEMPTS}/{found[0]}", content)
    return claim


def test_the_command_says_what_cannot_be_stopped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = LocalFiles(tmp_path)
    OffsetLog(files.at(OFFSETS)).add(0, OffsetEntry(1, ("{}",)))
    assert main(["stop", str(tmp_path)]) == 2
    assert "query of Spark's cannot be asked" in capsys.readouterr().err
    assert not os.path.exists(tmp_path / STOPS)
