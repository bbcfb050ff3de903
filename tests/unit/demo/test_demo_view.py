"""The demo: its output where there is no terminal, its totals, and what breaks the balance."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace

import pytest
from rich.console import Console

from epochal.demo.demo_view import Figures, Screen, line, live_view
from epochal.demo.orders import Balance, Total, balance, order, totals

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


def test_an_order_is_the_same_in_every_run() -> None:
    assert order(7) == order(7)
    assert json.loads(order(7).payload())["order_id"] == 7


def test_totals_count_every_order_once() -> None:
    found = totals(100)
    assert sum(each.orders for each in found.values()) == 100
    assert sum(each.cents for each in found.values()) == sum(order(n).cents for n in range(100))


def test_the_balance_holds_if_every_order_was_output_once() -> None:
    found = balance(50, list(range(50)), totals(50), totals(50))
    assert found == Balance(50, 50, 0, 0, 0, 0)
    assert found.holds


def test_lost_repeated_and_wrong_results_are_counted() -> None:
    wrong = {**totals(50), "customer-000": Total(99, 1)}
    found = balance(50, [*range(1, 50), 49], wrong, {})
    assert (found.lost, found.repeated, found.wrong_totals) == (1, 1, 1)
    assert found.wrong_states == len(totals(50))
    assert not found.holds
