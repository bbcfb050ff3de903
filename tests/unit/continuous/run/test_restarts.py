"""When a failed query starts again, and when it ends."""

from __future__ import annotations

from random import Random

import pytest

from epochal.continuous.run.restarts import (
    LONGEST_PAUSE_SECONDS,
    GiveUp,
    RestartAfter,
    RestartDecision,
    RestartPolicy,
    Restarts,
    ending_error,
    waiting_text,
)
from epochal.errors import (
    EvaluatorError,
    ExpressionError,
    KafkaDataLossError,
    OptionError,
    StorageError,
    TaskFailedError,
)
from epochal.errors.base import FailureKind

LOST, REPEATS = FailureKind.LOST, FailureKind.REPEATS
UNAVAILABLE, REFUSED = FailureKind.UNAVAILABLE, FailureKind.REFUSED


def decisions(
    policy: RestartPolicy, *failures: tuple[float, FailureKind, int]
) -> list[RestartDecision]:
    restarts = Restarts(policy, Random(1))
    return [restarts.after_failure(now, kind, commits) for now, kind, commits in failures]


def restarted(*decided: RestartDecision) -> list[bool]:
    return [isinstance(each, RestartAfter) for each in decided]


def test_what_repeats_ends_the_query_whatever_was_committed() -> None:
    for commits in (0, 5):
        (decision,) = decisions(RestartPolicy(), (0.0, REPEATS, commits))
        assert decision == GiveUp("it would fail again")


def test_the_first_failure_is_followed_by_a_restart_at_once() -> None:
    assert decisions(RestartPolicy(), (0.0, LOST, 0)) == [RestartAfter(0.0)]
    assert decisions(RestartPolicy(), (3.0, UNAVAILABLE, 0)) == [RestartAfter(0.0, 3.0)]


def test_pauses_double_while_nothing_is_committed_and_stay_short() -> None:
    decided = decisions(RestartPolicy(), *[(float(i), UNAVAILABLE, 5) for i in range(8)])
    bounds = [(0, 0), (0.05, 0.1), (0.1, 0.2), (0.2, 0.4), (0.4, 0.8), (0.8, 1.6), (1, 2), (1, 2)]
    for decision, (low, high) in zip(decided, bounds, strict=True):
        assert isinstance(decision, RestartAfter)
        assert low <= decision.seconds <= high <= LONGEST_PAUSE_SECONDS


def test_a_query_that_loses_its_workers_again_and_again_is_given_up() -> None:
    decided = decisions(RestartPolicy(max_restarts=2), *[(0.0, LOST, 5)] * 3)
    assert decided[2] == GiveUp("2 restarts in a row committed no epoch (maxRestarts)")


def test_an_outage_is_waited_for_until_its_time_is_up() -> None:
    policy = RestartPolicy(outage_seconds=60)
    decided = decisions(policy, *[(float(second), UNAVAILABLE, 3) for second in range(100, 162)])
    assert restarted(*decided) == [True] * 60 + [False] * 2
    assert decided[60] == GiveUp("the outage has lasted for 60 s (outageTimeout)")


def test_an_outage_may_last_for_ever() -> None:
    policy = RestartPolicy(outage_seconds=0)
    failures = [(1000.0 * number, UNAVAILABLE, 3) for number in range(1000)]
    assert restarted(*decisions(policy, *failures)) == [True] * 1000


def test_pauses_are_the_same_for_the_same_seed_and_differ_between_seeds() -> None:
    def second(seed: int) -> RestartDecision:
        restarts = Restarts(RestartPolicy(), Random(seed))
        restarts.after_failure(0.0, LOST, 1)
        return restarts.after_failure(1.0, LOST, 1)

    assert second(7) == second(7)
    assert second(7) != second(8)


@pytest.mark.parametrize("wrong", [{"max_restarts": -1}, {"outage_seconds": -0.1}])
def test_limits_that_make_no_sense_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(OptionError):
        RestartPolicy(**wrong)  # type: ignore[arg-type]


def test_a_query_ends_with_the_words_of_the_expression_that_failed_in_a_task() -> None:
    for error in (ExpressionError("[DIVIDE_BY_ZERO] by zero"), EvaluatorError("it lacks memory")):
        for name in (type(error).__name__, f"epochal.errors.query.{type(error).__name__}"):
            ending = ending_error(TaskFailedError(0, f"{name}: {error}", "Traceback", REPEATS))
            assert (type(ending), str(ending)) == (type(error), str(error))


def test_a_query_ends_with_any_other_error_as_it_is() -> None:
    for error in (
        TaskFailedError(0, "KafkaDataLossError: gone", "Traceback", REPEATS),
        TaskFailedError(0, "ExpressionError: by somebody", "", LOST),
        KafkaDataLossError("servers", "kind", "gone"),
    ):
        assert ending_error(error) is error


def test_the_status_says_in_one_line_what_is_waited_for_since_when() -> None:
    full = StorageError("/out", "the disk is full (No space left on device)")
    failed = TaskFailedError(3, f"StorageError: {full}", "Traceback\n" + "line\n" * 50, REFUSED)
    since = "waiting since 2024-01-01 00:00:00 UTC: "
    assert waiting_text(full, 1_704_067_260_000, 60.0) == f"{since}{full}"
    assert waiting_text(failed, 1_704_067_260_000, 60.2) == f"{since}StorageError: {full}"
