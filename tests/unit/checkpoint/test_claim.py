"""Claims: one owner at a time; a dead or silent owner is detected and replaced."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from tests.waiting import eventually

from epochal.checkpoint.claim import (
    ATTEMPT_FORMAT,
    Claim,
    ClaimAttempt,
    Free,
    Owned,
    claim_path,
    decide_claim,
)
from epochal.errors import CheckpointInUseError, MalformedFileError, OptionError, StorageError
from epochal.files import Files
from epochal.files.local import LocalFiles
from epochal.testing.clock import ManualClock
from epochal.testing.files import FaultyFiles, MemoryFiles

NOW = 1_700_000_000_000
OWNER = ClaimAttempt("run-a", "rewind", "host-a", "boot/pid", 100, 5, NOW, 30_000)
OTHER = ClaimAttempt("run-b", "repair", "host-b", "boot2/pid", 200, 6, NOW, 30_000)


def acquire(files: Files, run_id: str, clock: ManualClock | None = None, **more: float) -> Claim:
    """Claim without a background thread."""
    return Claim.acquire(
        files,
        run_id,
        purpose="test",
        clock=clock or ManualClock(),
        background=False,
        claim_seconds=more.get("claim_seconds", 30),
    )


def world() -> tuple[MemoryFiles, ManualClock]:
    clock = ManualClock(NOW)
    return MemoryFiles(clock=clock), clock


def test_an_unclaimed_checkpoint_is_claimed_as_attempt_0() -> None:
    assert decide_claim(None, {}, OTHER, NOW) == Free(0)


def test_a_released_checkpoint_is_claimed_as_the_next_attempt() -> None:
    assert decide_claim((4, OWNER), {}, OTHER, NOW) == Free(5)


def test_a_live_owner_is_respected_until_its_claim_has_expired() -> None:
    for silent_ms in (0, 29_999, 30_000):
        renewals = {"run-a": NOW - silent_ms}
        assert decide_claim((4, OWNER), renewals, OTHER, NOW) == Owned(4, OWNER, silent_ms)
    assert decide_claim((4, OWNER), {"run-a": NOW - 30_001}, OTHER, NOW) == Free(5, OWNER)


def test_an_owner_whose_process_has_ended_is_stale_at_once() -> None:
    assert decide_claim((4, OWNER), {"run-a": NOW}, OTHER, NOW, ["run-a"]) == Free(5, OWNER)


def test_a_renewal_in_the_future_counts_as_fresh() -> None:
    assert decide_claim((4, OWNER), {"run-a": NOW + 5}, OTHER, NOW) == Owned(4, OWNER, 0)


def test_a_run_may_claim_again_from_the_same_process_only() -> None:
    assert decide_claim((4, OWNER), {"run-a": NOW}, OWNER, NOW) == Free(5)
    elsewhere = replace(OWNER, process=101)
    assert decide_claim((4, OWNER), {"run-a": NOW}, elsewhere, NOW) == Owned(4, OWNER, 0)


def test_an_attempt_is_written_and_read_back() -> None:
    assert ATTEMPT_FORMAT.deserialize(ATTEMPT_FORMAT.serialize(OWNER), "") == OWNER
    for data in (b"", b"v1", b"v1\n{}", b"\xff"):
        with pytest.raises(MalformedFileError):
            ATTEMPT_FORMAT.deserialize(data, "attempts/0")


def test_a_second_run_is_refused_with_both_run_ids() -> None:
    files, clock = world()
    first = acquire(files, "run-a", clock)
    clock.advance(2)
    with pytest.raises(CheckpointInUseError) as caught:
        acquire(files, "run-b", clock)
    assert (caught.value.this_run, caught.value.other_run) == ("run-b", "run-a")
    assert "run-a" in str(caught.value)
    assert "run-b" in str(caught.value)
    assert f"process {os.getpid()}" in str(caught.value)
    assert "2.0 s ago" in str(caught.value)
    assert first.still_mine()
    assert [info.name for info in files.list(".epochal/lease")] == ["run-a"]


def test_an_owner_that_renews_keeps_the_checkpoint_for_as_long_as_it_likes() -> None:
    files, clock = world()
    claim = acquire(files, "run-a", clock)
    for _ in range(20):
        clock.advance(20)
        assert claim.renew()
        with pytest.raises(CheckpointInUseError):
            acquire(files, "run-b", clock)
    assert claim.still_mine()


def test_an_owner_that_fell_silent_is_taken_over_and_notices() -> None:
    files, clock = world()
    silent = acquire(files, "run-a", clock)
    clock.advance(30.001)
    heir = acquire(files, "run-b", clock)
    assert heir.attempt == 1
    assert heir.took_over is not None
    assert heir.took_over.run_id == "run-a"
    assert not silent.still_mine()
    assert not silent.renew()
    silent.release()
    assert heir.still_mine()
    with pytest.raises(CheckpointInUseError, match="run-b"):
        acquire(files, "run-c", clock)


def test_an_owner_that_fell_silent_has_lost_even_if_nobody_took_over() -> None:
    files, clock = world()
    claim = acquire(files, "run-a", clock)
    clock.advance(30)
    assert not claim.renew()
    assert not claim.still_mine()
    again = acquire(files, "run-a", clock)
    assert again.attempt == 1
    claim.release()
    assert again.still_mine()
    with pytest.raises(CheckpointInUseError):
        acquire(files, "run-b", clock)


def claim_or_rival(files: Files, run_id: str, clock: ManualClock) -> Claim | str:
    """The claim, or the run that owns the checkpoint."""
    try:
        return acquire(files, run_id, clock)
    except CheckpointInUseError as error:
        return error.other_run


def interrupted_claim(steps: int) -> tuple[bool, MemoryFiles, ManualClock, list[Claim | str]]:
    """Run-a takes over from a silent run; after `steps` operations run-b claims too."""
    files, clock = world()
    acquire(files, "run-old", clock)
    clock.advance(31)
    rival: list[Claim | str] = []
    left = steps

    def interrupt(operation: str, path: str) -> None:
        nonlocal left
        left -= 1
        if left == -1:
            rival.append(claim_or_rival(files, "run-b", clock))

    mine = claim_or_rival(FaultyFiles(files, interrupt), "run-a", clock)
    return bool(rival), files, clock, [mine, *rival]


def test_whoever_claims_meanwhile_exactly_one_run_owns_the_checkpoint() -> None:
    winners = []
    for steps in range(100):
        reached, files, clock, results = interrupted_claim(steps)
        if not reached:
            break
        claims = [result for result in results if isinstance(result, Claim)]
        assert [claim.attempt for claim in claims] == [1]
        assert claims[0].still_mine()
        assert claims[0].run_id in results
        with pytest.raises(CheckpointInUseError, match=claims[0].run_id):
            acquire(files, "run-c", clock)
        winners.append(claims[0].run_id)
    assert len(winners) > 5
    assert set(winners) == {"run-a", "run-b"}


def test_a_claimant_that_dies_at_any_step_keeps_others_out_only_until_its_claim_expires() -> None:
    class Dead(BaseException):
        pass

    for steps in range(12):
        files, clock = world()
        left = steps

        def die(operation: str, path: str) -> None:
            nonlocal left
            if left == 0:
                raise Dead
            left -= 1

        with suppress(Dead):
            acquire(FaultyFiles(files, die), "run-a", clock)
        clock.advance(31)
        assert acquire(files, "run-b", clock).still_mine()


def test_abandoned_claims_are_deleted_after_a_day() -> None:
    files, clock = world()
    files.create(".epochal/lease/never-claimed", b"{}")
    clock.advance(24 * 3600 + 1)
    acquire(files, "run-a", clock)
    assert [info.name for info in files.list(".epochal/lease")] == ["run-a"]


def test_storage_that_fails_is_named() -> None:
    def refuse(operation: str, path: str) -> None:
        if operation == "replace":
            raise PermissionError(13, "Permission denied")

    with pytest.raises(StorageError, match=r"lease/run-a: access is denied"):
        acquire(FaultyFiles(MemoryFiles(), refuse), "run-a")


@pytest.mark.parametrize("run_id", ["", "../x", "a/b", ".hidden", "a\nb", "x" * 200])
def test_a_run_id_must_be_a_file_name(run_id: str) -> None:
    with pytest.raises(OptionError, match="run id"):
        acquire(MemoryFiles(), run_id)


OWNER_PROCESS = """
import sys
from epochal.checkpoint.claim import Claim
from epochal.files.local import LocalFiles

directory, run_id, claim_seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
print("ready", flush=True)
sys.stdin.readline()
try:
    files = LocalFiles(directory)
    claim = Claim.acquire(files, run_id, purpose="test", claim_seconds=claim_seconds)
except Exception as error:
    print(f"refused {error.other_run}", flush=True)
    sys.exit()
print(f"claimed {claim.attempt}", flush=True)
for line in sys.stdin:
    print(claim.still_mine(), flush=True)
"""


class Owner:
    """A process that claims the checkpoint on command."""

    def __init__(self, directory: Path, run_id: str, claim_seconds: float) -> None:
        self.run_id = run_id
        self.process = subprocess.Popen(
            [sys.executable, "-c", OWNER_PROCESS, str(directory), run_id, str(claim_seconds)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.hear() == "ready"

    def tell(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def hear(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def ask(self) -> str:
        self.tell()
        return self.hear()


@contextmanager
def owner(directory: Path, run_id: str, claim_seconds: float) -> Iterator[Owner]:
    started = Owner(directory, run_id, claim_seconds)
    try:
        yield started
    finally:
        started.process.kill()
        started.process.communicate()


def test_a_killed_owner_on_this_host_is_taken_over_at_once(tmp_path: Path) -> None:
    with owner(tmp_path, "run-a", 3600) as first:
        assert first.ask() == "claimed 0"
        with pytest.raises(CheckpointInUseError, match="run-a"):
            Claim.acquire(LocalFiles(tmp_path), "run-b", purpose="test")
        first.process.kill()
        first.process.wait()
        with Claim.acquire(LocalFiles(tmp_path), "run-b", purpose="test") as heir:
            assert heir.attempt == 1
            assert heir.took_over is not None
            assert heir.took_over.run_id == "run-a"


def test_a_killed_owner_nobody_has_waited_for_is_dead_all_the_same(tmp_path: Path) -> None:
    with owner(tmp_path, "run-a", 3600) as first:
        assert first.ask() == "claimed 0"
        first.process.kill()
        os.waitid(os.P_PID, first.process.pid, os.WEXITED | os.WNOWAIT)
        with Claim.acquire(LocalFiles(tmp_path), "run-b", purpose="test") as heir:
            assert heir.attempt == 1


def test_an_owner_paused_until_its_claim_expired_notices_when_it_wakes(tmp_path: Path) -> None:
    with owner(tmp_path, "run-a", 1) as first:
        assert first.ask() == "claimed 0"
        assert first.ask() == "True"
        first.process.send_signal(signal.SIGSTOP)
        heir = eventually_acquire(tmp_path, "run-b")
        first.process.send_signal(signal.SIGCONT)
        assert first.ask() == "False"
        assert heir.still_mine()
        heir.release()


def eventually_acquire(directory: Path, run_id: str) -> Claim:
    def acquired() -> Claim | None:
        with suppress(CheckpointInUseError):
            return Claim.acquire(LocalFiles(directory), run_id, purpose="test")
        return None

    return eventually(acquired, "the lease runs out")


def test_the_background_thread_renews_a_short_claim(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path)
    with Claim.acquire(files, "run-a", purpose="test", claim_seconds=5) as claim:
        first = files.read(".epochal/lease/run-a")
        eventually(lambda: files.read(".epochal/lease/run-a") != first, "the lease is renewed")
        renewed = files.read(".epochal/lease/run-a")
        assert json.loads(renewed)["renewedMs"] > json.loads(first)["renewedMs"]
        assert claim.still_mine()


def test_of_processes_that_race_exactly_one_claims(tmp_path: Path) -> None:
    owners = [Owner(tmp_path, f"run-{i}", 60) for i in range(5)]
    try:
        for each in owners:
            each.tell()
        said = {each.run_id: each.hear() for each in owners}
    finally:
        for each in owners:
            each.process.kill()
            each.process.communicate()
    winners = [run_id for run_id, answer in said.items() if answer.startswith("claimed")]
    assert len(winners) == 1
    assert said.pop(winners[0]) == "claimed 0"
    assert set(said.values()) == {f"refused {winners[0]}"}


def test_a_run_that_ended_in_this_process_has_no_claim_though_its_file_is_left() -> None:
    files, clock = world()
    claim = acquire(files, "run-a", clock)
    stuck = FaultyFiles(files, refuse_deletion)
    claim._files = stuck
    with pytest.raises(StorageError, match="read-only"):
        claim.release()
    assert files.info(claim_path("run-a")) is not None
    assert acquire(files, "run-b", clock).attempt == 1


def refuse_deletion(operation: str, path: str) -> None:
    if operation == "delete":
        raise OSError(errno.EROFS, "Read-only file system", path)
