"""Further attempts of one run: numbers are never used twice, and a fenced run finds out."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from itertools import count
from random import Random

import pytest

from epochal.checkpoint.claim import ATTEMPT_FORMAT, Claim, ClaimAttempt
from epochal.checkpoint.layout import ATTEMPTS
from epochal.checkpoint.metadata_log import MetadataLog
from epochal.errors import CheckpointInUseError, CheckpointLostError, LostAnswerError
from epochal.files import Files
from epochal.testing.clock import ManualClock
from epochal.testing.files import FaultyFiles, MemoryFiles


def world() -> tuple[MemoryFiles, ManualClock]:
    clock = ManualClock()
    return MemoryFiles(clock=clock), clock


def acquire(files: Files, run_id: str, clock: ManualClock) -> Claim:
    return Claim.acquire(files, run_id, purpose="test", clock=clock, background=False)


def attempts(files: Files) -> dict[int, ClaimAttempt]:
    return dict(MetadataLog(files.at(ATTEMPTS), ATTEMPT_FORMAT).get_range())


def test_each_attempt_of_a_run_has_a_number_of_its_own_and_is_recorded() -> None:
    files, clock = world()
    claim = acquire(files, "run-a", clock)
    clock.advance(1)
    assert (claim.attempt, claim.next_attempt(), claim.next_attempt()) == (0, 1, 2)
    assert claim.attempt == 2
    recorded = attempts(files)
    assert [recorded[n].run_id for n in (0, 1, 2)] == ["run-a"] * 3
    assert recorded[1].started_ms == recorded[0].started_ms + 1000
    assert claim.still_mine()


def test_the_next_run_counts_on() -> None:
    files, clock = world()
    with acquire(files, "run-a", clock) as claim:
        claim.next_attempt()
    assert acquire(files, "run-b", clock).attempt == 2


def test_a_number_that_a_decision_names_is_not_used_again() -> None:
    files, clock = world()
    claim = acquire(files, "run-a", clock)
    assert claim.next_attempt(above=7) == 8
    assert claim.next_attempt(above=7) == 9
    assert claim.still_mine()
    claim.release()
    assert acquire(files, "run-b", clock).attempt == 10


def test_a_run_that_another_took_over_gets_no_further_attempt() -> None:
    files, clock = world()
    claim = acquire(files, "run-a", clock)
    log = MetadataLog(files.at(ATTEMPTS), ATTEMPT_FORMAT)
    log.add(1, replace(attempts(files)[0], run_id="run-b", process=1))
    for above in (-1, 5):
        with pytest.raises(CheckpointLostError, match="run-b has begun attempt 1") as lost:
            claim.next_attempt(above=above)
        assert lost.value.this_run == "run-a"
    assert not claim.still_mine()
    assert list(attempts(files)) == [0, 1]


def test_a_run_whose_claim_expired_claims_again_with_its_next_attempt() -> None:
    files, clock = world()
    claim = acquire(files, "run-a", clock)
    clock.advance(31)
    assert (claim.still_mine(), claim.renew()) == (False, False)
    assert (claim.next_attempt(), claim.still_mine(), claim.renew()) == (1, True, True)
    with pytest.raises(CheckpointInUseError):
        acquire(files, "run-b", clock)
    clock.advance(31)
    assert claim.next_attempt(above=7) == 8
    assert MetadataLog(files.at(ATTEMPTS), ATTEMPT_FORMAT).batch_ids() == [0, 1, 2, 8]


def owner_after_a_race(moment: int) -> list[str]:
    """Who owns the checkpoint if another run comes before this operation of the expired owner."""
    files, clock = world()
    mine = acquire(files, "run-a", clock)
    clock.advance(31)
    others: list[Claim] = []
    operations = count()

    def interrupt(operation: str, path: str) -> None:
        del operation, path
        if next(operations) == moment:
            with suppress(CheckpointInUseError):
                others.append(acquire(files, "run-b", clock))

    mine._files = FaultyFiles(files, interrupt)
    with suppress(CheckpointLostError):
        mine.next_attempt()
    return [each.run_id for each in (mine, *others) if each.still_mine()]


def test_of_an_expired_owner_and_a_claimant_exactly_one_wins_at_any_moment() -> None:
    winners = [owner_after_a_race(moment) for moment in range(12)]
    assert [len(owners) for owners in winners] == [1] * 12
    assert sorted({owners[0] for owners in winners}) == ["run-a", "run-b"]


def test_a_claimant_that_comes_too_late_for_an_expired_claim_finds_it_renewed() -> None:
    files, clock = world()
    mine = acquire(files, "run-a", clock)
    clock.advance(31)

    def interrupt(operation: str, path: str) -> None:
        if (operation, path) == ("create", f"{ATTEMPTS}/1"):
            mine.next_attempt()  # run-b has found the claim expired, and is about to take it

    with pytest.raises(CheckpointInUseError, match="run-a"):
        Claim.acquire(
            FaultyFiles(files, interrupt), "run-b", purpose="test", clock=clock, background=False
        )
    assert mine.still_mine()


@pytest.mark.parametrize("seconds", [3_600, -3_600])
def test_a_step_of_the_wall_clock_does_not_end_a_claim(seconds: float) -> None:
    files, clock = world()
    claim = acquire(files, "run-a", clock)
    clock.step(seconds)
    assert (claim.still_mine(), claim.renew(), claim.next_attempt()) == (True, True, 1)
    with pytest.raises(CheckpointInUseError):
        acquire(files, "run-b", clock)


@pytest.mark.parametrize("seed", range(40))
def test_at_no_time_do_two_runs_own_a_checkpoint(seed: int) -> None:
    chance = Random(seed)
    files, clock = world()
    runs: list[Claim] = []
    for number in range(60):
        match chance.choice(("time", "time", "clock", "new", "renew", "again", "again")):
            case "time":
                clock.advance(chance.choice((1, 10, 29, 31)))
            case "clock":
                clock.step(chance.choice((-100, -10, 10, 100)))
            case "new":
                with suppress(CheckpointInUseError):
                    runs.append(acquire(files, f"run-{number}", clock))
            case "renew" if runs:
                chance.choice(runs).renew()
            case "again" if runs:
                with suppress(CheckpointLostError):
                    chance.choice(runs).next_attempt()
        owners = [each for each in runs if each.still_mine()]
        assert len(owners) <= 1
        assert [each.attempt for each in owners] in ([], [max(attempts(files), default=-1)])


def test_a_deleted_checkpoint_is_lost_and_nothing_is_written_to_it() -> None:
    for use in (Claim.renew, Claim.next_attempt):
        files, clock = world()
        claim = acquire(files, "run-a", clock)
        files.delete_tree()
        with suppress(CheckpointLostError):
            use(claim)
        with pytest.raises(CheckpointLostError, match="deleted"):
            claim.next_attempt()
        claim.release()
        assert [path for path, _ in files.walk()] == []


def test_a_checkpoint_that_was_deleted_and_begun_anew_is_lost() -> None:
    files, clock = world()
    claim = acquire(files, "run-a", clock)
    files.delete_tree()
    heir = acquire(files, "run-b", clock)
    assert not claim.renew()
    with pytest.raises(CheckpointLostError):
        claim.next_attempt()
    assert heir.still_mine()


def test_a_run_that_has_released_gets_no_further_attempt() -> None:
    files, clock = world()
    claim = acquire(files, "run-a", clock)
    claim.release()
    with pytest.raises(CheckpointLostError):
        claim.next_attempt()


def test_somebody_who_comes_first_in_the_very_moment_wins() -> None:
    files, clock = world()
    mine = acquire(files, "run-a", clock)
    other = replace(attempts(files)[0], run_id="run-b", process=1)

    def interrupt(operation: str, path: str) -> None:
        if (operation, path) == ("create", f"{ATTEMPTS}/1"):
            MetadataLog(files.at(ATTEMPTS), ATTEMPT_FORMAT).add(1, other)

    mine._files = FaultyFiles(files, interrupt)
    with pytest.raises(CheckpointLostError):
        mine.next_attempt()
    assert attempts(files)[1] == other


def test_an_attempt_whose_recording_was_not_answered_is_found_and_used() -> None:
    files, clock = world()
    claim = acquire(files, "run-a", clock)
    recorded = replace(attempts(files)[0], started_ms=clock.now_ms())

    def lose_answer(operation: str, path: str) -> None:
        if (operation, path) == ("create", f"{ATTEMPTS}/1"):
            MetadataLog(files.at(ATTEMPTS), ATTEMPT_FORMAT).add(1, recorded)
            raise LostAnswerError(path, "no answer")

    claim._files = FaultyFiles(files, lose_answer)
    with pytest.raises(LostAnswerError):
        claim.next_attempt()
    claim._files = files
    assert claim.next_attempt() == 1
    assert claim.still_mine()


def test_old_attempts_of_one_long_run_are_cleaned_up_too() -> None:
    files, clock = world()
    claim = acquire(files, "run-a", clock)
    for _ in range(130):
        claim.next_attempt()
    assert list(attempts(files)) == list(range(30, 131))
