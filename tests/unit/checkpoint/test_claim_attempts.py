"""Further attempts of one run: numbers are never used twice, and a fenced run finds out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from epochal.checkpoint.claim import ATTEMPT_FORMAT, Attempt, Claim
from epochal.checkpoint.layout import ATTEMPTS
from epochal.checkpoint.metadata_log import MetadataLog
from epochal.errors import CheckpointLostError, LostAnswerError
from epochal.files import Files
from epochal.testing.clock import ManualClock
from epochal.testing.files import FaultyFiles, MemoryFiles


def world() -> tuple[MemoryFiles, ManualClock]:
    clock = ManualClock()
    return MemoryFiles(clock=clock), clock


def acquire(files: Files, run_id: str, clock: ManualClock) -> Claim:
    return Claim.acquire(files, run_id, purpose="test", clock=clock, background=False)


def attempts(files: Files) -> dict[int, Attempt]:
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
        with pytest.raises(CheckpointLostError) as lost:
            claim.next_attempt(above=above)
        assert lost.value.this_run == "run-a"
    assert not claim.still_mine()
    assert list(attempts(files)) == [0, 1]


def test_the_error_names_who_took_over() -> None:
    files, clock = world()
    claim = acquire(files, "run-a", clock)
    log = MetadataLog(files.at(ATTEMPTS), ATTEMPT_FORMAT)
    log.add(1, replace(attempts(files)[0], run_id="run-b", process=1))
    with pytest.raises(CheckpointLostError, match="run-b has begun attempt 1"):
        claim.next_attempt()


def test_a_run_whose_claim_expired_gets_no_further_attempt() -> None:
    files, clock = world()
    claim = acquire(files, "run-a", clock)
    clock.advance(31)
    with pytest.raises(CheckpointLostError):
        claim.next_attempt()
    assert list(attempts(files)) == [0]


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
