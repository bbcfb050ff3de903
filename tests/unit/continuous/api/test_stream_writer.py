"""Triggers as options."""

from __future__ import annotations

from typing import Any

import pytest

from epochal.continuous.api.stream_writer import trigger_options
from epochal.errors import OptionError


@pytest.mark.parametrize(
    ("given", "options"),
    [
        ({"epoch": "50 milliseconds"}, {"epoch": "50 milliseconds"}),
        ({"processingTime": "5 seconds"}, {"epoch": "5 seconds"}),
        ({"processingTime": "0 seconds"}, {}),
        ({"continuous": "1 second"}, {"epoch": "1 second"}),
        ({"availableNow": True}, {"availableNow": "true"}),
        ({"once": True, "epoch": None}, {"once": "true"}),
    ],
)
def test_a_trigger_is_an_option(given: dict[str, Any], options: dict[str, str]) -> None:
    assert trigger_options(given) == options


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({}, "exactly one trigger, but none were given"),
        ({"epoch": "1 second", "once": True}, "exactly one trigger, but epoch, once were given"),
        ({"availableNow": False}, "trigger(availableNow=...) must be True, not False"),
        ({"realTime": "5 minutes"}, "Use trigger(epoch='100 milliseconds')"),
    ],
)
def test_what_is_not_one_trigger_is_refused(given: dict[str, Any], reason: str) -> None:
    with pytest.raises(OptionError) as refused:
        trigger_options(given)
    assert reason in str(refused.value)
