"""The demo's output where there is no terminal."""

from __future__ import annotations

import io
import re
from dataclasses import replace

import pytest
from rich.console import Console

from epochal.demo.demo_view import Figures, Screen, line, live_view

FIGURES = Figures(3.0, 500, 450, 99.6, (1.5, 20.25), 7, 12.0, 40, 0)


def test_a_line_contains_all_figures() -> None:
    assert line(FIGURES) == (
        "   3 s     100 rows/s  latency p50 1.5 ms, p99 20.2 ms  epoch 7 (+12 ms)  40 customers  "
        "backlog 50"
    )


def test_a_pipe_gets_a_line_every_two_seconds_and_when_the_note_changes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with live_view() as view:
        for seconds, note in (
            (0.0, ""),
            (1.0, ""),
            (1.5, "killed"),
            (2.5, "killed"),
            (3.0, "killed"),
        ):
            view.show(replace(FIGURES, seconds=seconds, note=note))
    lines = capsys.readouterr().out.splitlines()
    assert [each.split()[0] for each in lines] == ["0", "2", "2"]
    assert [each.endswith("killed") for each in lines] == [False, True, True]


def test_quiet_mode_prints_no_figures(capsys: pytest.CaptureFixture[str]) -> None:
    with live_view(quiet=True) as view:
        view.doing("Starting")
        view.show(FIGURES)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("missing", [{"committed": 0}, {"customers": 0}])
def test_no_figures_are_shown_while_they_are_zero(
    missing: dict[str, int], capsys: pytest.CaptureFixture[str]
) -> None:
    with live_view() as view:
        view.doing("Starting the query")
        view.show(replace(FIGURES, **missing))  # type: ignore[arg-type]
    assert capsys.readouterr().out == "Starting the query ...\n"


def test_the_screen_says_what_it_does_until_there_are_figures() -> None:
    screen = Screen()
    screen.doing("Starting Spark")
    screen.doing("Starting the query")
    screen.show(replace(FIGURES, committed=0))
    shown = rendered(screen)
    assert re.search(r"✓ Starting Spark +[\d.]+ s", shown)
    assert re.search(r". Starting the query +\d+ s", shown)
    assert "rows" not in shown
    screen.show(FIGURES)
    shown = rendered(screen)
    assert "✓ Starting the query" in shown
    assert re.search(r"committed +│ 450 \(90%\), 100 per second", shown)
    assert "not measured yet" in rendered_with(screen, replace(FIGURES, latency_ms=(0.0, 0.0)))


def test_the_columns_stay_where_they_are_while_the_text_changes() -> None:
    screen = Screen()
    notes = ("", "a worker was killed (kill -9): recovered in 3.1 s")
    tables = [rendered_with(screen, replace(FIGURES, note=note)) for note in notes]
    assert tables[0].index("┬") == tables[1].index("┬")


def test_all_are_committed_only_if_none_waits() -> None:
    shown = rendered_with(Screen(), replace(FIGURES, sent=30_000, committed=29_999))
    assert "29,999 (99%)" in shown


def rendered(screen: Screen) -> str:
    console = Console(file=io.StringIO(), width=80)
    with console.capture() as captured:
        console.print(screen.render())
    return captured.get()


def rendered_with(screen: Screen, figures: Figures) -> str:
    screen.show(figures)
    return rendered(screen)
