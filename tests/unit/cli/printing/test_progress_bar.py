"""Progress bars: rate and time left on a terminal, nothing elsewhere."""

from __future__ import annotations

import itertools
import re
import sys
import threading

import pytest
from tests.waiting import eventually

from epochal.cli.printing import output
from epochal.cli.printing.output import progress, rate_text
from epochal.tools.reporting import reporting, tracked


def plain(text: str) -> str:
    return re.sub(r"\x1b\[[?0-9;]*[A-Za-z]", "", text)


def pretend_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Call this in the test itself: pytest replaces stderr between a fixture and the test."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr(output, "PROGRESS_AFTER_SECONDS", 0.0)
    monkeypatch.setattr(output, "DRAW_EVERY_SECONDS", -1.0)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")


@pytest.mark.parametrize("forks", [False, True])
def test_shows_amount_rate_and_time_left(
    forks: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend_terminal(monkeypatch)
    shown, done = "", itertools.count(1)

    def work() -> bool:
        nonlocal shown
        advance(next(done), 1_000_000)
        shown += plain(capsys.readouterr().err)
        return "partitions/s" in shown and " left" in shown

    with progress("reading", "partition", forks=forks) as advance:
        eventually(work, "a rate and the time left")
    assert "reading" in shown
    assert "partitions/s" in shown
    assert re.search(r"[\d:]+ left", shown)
    assert re.search(r"\d+/\d+", shown)


def test_shows_only_the_time_while_the_amount_is_unknown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend_terminal(monkeypatch)
    shown = ""

    def read() -> str:
        nonlocal shown
        shown += plain(capsys.readouterr().err)
        return shown

    with progress("asking the brokers"):
        eventually(lambda: "asking the brokers" in read(), "the bar")
    assert "asking the brokers" in shown
    assert "/s" not in shown
    assert "left" not in shown


def test_work_that_forks_gets_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_terminal(monkeypatch)
    before = set(threading.enumerate())
    with progress("verifying", forks=True) as advance:
        for done in range(100):
            advance(done, 100)
        assert set(threading.enumerate()) - before == set()


def test_is_silent_if_stderr_is_not_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "PROGRESS_AFTER_SECONDS", -1.0)
    made: list[str] = []
    monkeypatch.setattr(output, "_rich_bar", lambda unit, **_: made.append(unit))
    with progress("reading", forks=True) as advance:
        advance(1, 2)
    assert (made, *capsys.readouterr()) == ([], "", "")


def test_is_silent_beside_rows_on_the_same_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend_terminal(monkeypatch)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    with progress("reading", while_printing=True, forks=True) as advance:
        advance(1, 2)
    assert capsys.readouterr().err == ""


def test_rates_are_worded() -> None:
    assert [rate_text(speed, "entry") for speed in (0.25, 12_345.6)] == [
        "0.2 entries/s",
        "12,346 entries/s",
    ]


def test_steps_are_counted_over_all_loops_of_a_tool() -> None:
    seen: list[tuple[int, int]] = []
    with reporting(lambda done, total: seen.append((done, total))):
        assert list(tracked(["a", "b"])) == ["a", "b"]
        for _ in tracked([1]):
            pass
    list(tracked([1, 2, 3]))
    assert seen == [(0, 2), (1, 2), (2, 2), (2, 3), (3, 3)]
