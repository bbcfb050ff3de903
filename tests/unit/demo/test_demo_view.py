"""The demo's output where there is no terminal."""

from __future__ import annotations

from dataclasses import replace

import pytest

from epochal.demo.demo_view import Figures, line, live_view

FIGURES = Figures(3.0, 500, 450, 99.6, (1.5, 20.25), 7, 12.0, 40, 0)


def test_a_line_contains_all_figures() -> None:
    assert line(FIGURES) == (
        "   3 s     100 rows/s  row p50 1.5 p99 20.2 ms  epoch 7 (+12 ms)  40 customers  backlog 50"
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
