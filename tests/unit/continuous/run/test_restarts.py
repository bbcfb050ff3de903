"""When a failed query starts again."""

from __future__ import annotations

from random import Random

import pytest

from epochal.continuous.run.restarts import (
    GiveUp,
    RestartAfter,
    RestartDecision,
    RestartPolicy,
    Restarts,
    fatal_error,
)
from epochal.errors import (
    EvaluatorError,
    EvaluatorLostError,
    ExpressionError,
    OptionError,
    TaskFailedError,
)


def waits(restarts: Restarts, *failures: tuple[float, int]) -> list[RestartDecision]:
    return [restarts.after_failure(now, committed) for now, committed in failures]


def test_the_first_failure_is_followed_by_a_restart_at_once() -> None:
    decisions = waits(Restarts(RestartPolicy(backoff_seconds=0.1), Random(1)), (0.0, 5))
    assert decisions == [RestartAfter(0.0, 1)]


def test_failures_with_commits_between_them_are_each_a_first_one() -> None:
    decisions = waits(Restarts(RestartPolicy(), Random(1)), (0.0, 5), (1.0, 6), (2.0, 9))
    assert decisions == [RestartAfter(0.0, 1), RestartAfter(0.0, 2), RestartAfter(0.0, 3)]


def test_waits_double_while_nothing_is_committed_and_stop_at_their_limit() -> None:
    policy = RestartPolicy(max_fruitless=9, backoff_seconds=1.0, max_backoff_seconds=5.0)
    decisions = waits(Restarts(policy, Random(1)), *[(float(i), 5) for i in range(5)])
    bounds = [(0, 0), (0.5, 1), (1, 2), (2, 4), (2.5, 5)]
    for decision, (low, high) in zip(decisions, bounds, strict=True):
        assert isinstance(decision, RestartAfter)
        assert low <= decision.seconds <= high


def test_a_committed_epoch_starts_the_waits_anew() -> None:
    policy = RestartPolicy(max_fruitless=2, backoff_seconds=1.0)
    decisions = waits(Restarts(policy, Random(1)), (0.0, 5), (1.0, 5), (2.0, 6), (3.0, 6))
    assert [isinstance(each, RestartAfter) for each in decisions] == [True] * 4
    assert isinstance(decisions[1], RestartAfter)
    assert decisions[1].seconds > 0.0
    assert decisions[2] == RestartAfter(0.0, 3)


def test_a_query_that_gets_nowhere_is_given_up() -> None:
    decisions = waits(Restarts(RestartPolicy(max_fruitless=2), Random(1)), *[(0.0, 5)] * 3)
    assert decisions[2] == GiveUp("2 restarts in a row committed no epoch (maxFruitlessRestarts)")


def test_a_query_that_fails_too_often_is_given_up_though_it_gets_on() -> None:
    policy = RestartPolicy(max_restarts=2, window_seconds=60)
    decisions = waits(Restarts(policy, Random(1)), (0.0, 1), (1.0, 2), (2.0, 3))
    assert decisions[2] == GiveUp(
        "it was restarted 2 times within 60 s, the limit (maxRestarts, restartWindow)"
    )


def test_restarts_that_are_long_ago_do_not_count() -> None:
    policy = RestartPolicy(max_restarts=2, window_seconds=60)
    decisions = waits(Restarts(policy, Random(1)), (0.0, 1), (30.0, 2), (60.0, 3), (95.0, 4))
    assert [isinstance(each, RestartAfter) for each in decisions] == [True] * 4


def test_a_limit_of_none_ends_the_query_with_the_first_failure() -> None:
    (decision,) = waits(Restarts(RestartPolicy(max_restarts=0), Random(1)), (0.0, 1))
    assert isinstance(decision, GiveUp)


def test_waits_are_the_same_for_the_same_seed_and_differ_between_seeds() -> None:
    def second(seed: int) -> RestartDecision:
        return waits(Restarts(RestartPolicy(), Random(seed)), (0.0, 1), (1.0, 1))[1]

    assert second(7) == second(7)
    assert second(7) != second(8)


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_restarts": -1},
        {"max_fruitless": -1},
        {"window_seconds": 0},
        {"backoff_seconds": -0.1},
    ],
)
def test_limits_that_make_no_sense_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(OptionError):
        RestartPolicy(**wrong)  # type: ignore[arg-type]


def test_an_error_of_an_expression_in_a_task_is_fatal_and_has_its_own_words() -> None:
    for error in (ExpressionError("[DIVIDE_BY_ZERO] by zero"), EvaluatorError("it lacks memory")):
        for name in (type(error).__name__, f"epochal.errors.query.{type(error).__name__}"):
            found = fatal_error(TaskFailedError(0, f"{name}: {error}", "Traceback ..."))
            assert (type(found), str(found)) == (type(error), str(error))


def test_a_lost_evaluator_and_a_user_s_error_of_the_same_name_are_not_fatal() -> None:
    lost = TaskFailedError(0, f"EvaluatorLostError: {EvaluatorLostError('killed')}", "")
    users = TaskFailedError(0, "ExpressionError: of the user's own", "", in_user_code=True)
    assert [fatal_error(lost), fatal_error(users), fatal_error(ValueError("x"))] == [None] * 3
    assert fatal_error(OptionError("wrong")).args == ("wrong",)  # type: ignore[union-attr]
