"""Tables, text, plans and progress bars that fit a terminal."""

from __future__ import annotations

import itertools
import random
import re
import sys
import threading

import pytest
from tests.waiting import eventually

from epochal.cli.editing import directory_rows, word_for_epochs
from epochal.cli.printing import output
from epochal.cli.printing.output import progress, rate_text
from epochal.cli.printing.table_layout import (
    cells_wide,
    fold_text,
    shared_columns,
    table_lines,
    text_lines,
)
from epochal.tools.edit.edit_plan import Change, Plan, Stamp
from epochal.tools.reporting import reporting, tracked

TIME = "2026-11-15T22:40:13.224Z"


def test_a_table_that_fits_is_only_aligned() -> None:
    head, lines = table_lines(("a", "long name"), [("1", "x"), ("222", "y")], 20)
    assert (head, lines) == ("a    long name", ["1    x", "222  y"])


def test_the_widest_column_is_folded_at_words() -> None:
    head, lines = table_lines(("batch", "change"), [("1", "offset 5 to 7, watermark later")], 24)
    assert head == "batch  change"
    assert lines == ["1      offset 5 to 7,", "       watermark later"]


def test_times_stay_whole_while_other_columns_give_way() -> None:
    rows = [(TIME, TIME, "a word and another word and one more word")]
    _, lines = table_lines(("from", "to", "what"), rows, 72)
    assert lines[0].startswith(f"{TIME}  {TIME}  a word")
    assert len(lines) == 3


def test_a_table_that_cannot_fit_becomes_blocks() -> None:
    rows = [(TIME, TIME, "one"), (TIME, TIME, "two")]
    head, lines = table_lines(("from", "to", "what"), rows, 30)
    assert head == ""
    assert lines[:4] == [f"from  {TIME}", f"to    {TIME}", "what  one", ""]


def test_a_value_that_all_rows_share_is_said_above_a_table_that_would_not_fit() -> None:
    columns = ("query", "group", "partition", "lag")
    rows = [("q" * 36, "orders", "0", "5"), ("q" * 36, "orders", "1", "7")]
    assert shared_columns(columns, rows, 70) == []
    assert shared_columns(columns, rows, 40) == [0]
    assert shared_columns(columns, rows, 18) == [0, 1]
    assert shared_columns(columns, rows, 12) == []  # no column is narrow enough
    assert shared_columns(columns, rows, None) == []
    assert shared_columns(columns, rows[:1], 40) == []


def test_the_bounds_of_a_window_are_not_cut() -> None:
    window = f"window=[{TIME[:19]}Z, {TIME[:19]}Z), k=k4"
    rows = [("10", "update", window, "count=6, sum=272", "0")]
    columns = ("batch_id", "change_type", "key", "value", "partition_id")
    _, lines = table_lines(columns, rows, 80)
    assert f"window=[{TIME[:19]}Z," in lines[0]
    assert len(lines) == 2


def test_a_control_character_breaks_no_row() -> None:
    _, lines = table_lines(("key", "n"), [("a\nb\x1b[31m", "1")])
    assert lines == ["a\\nb\\x1b[31m  1"]


def test_wide_characters_take_two_columns() -> None:
    _, lines = table_lines(("key", "n"), [("日本", "1"), ("abcd", "2")])
    assert lines == ["日本  1", "abcd  2"]


@pytest.mark.parametrize("seed", range(200))
def test_no_line_is_wider_than_the_terminal_and_no_text_is_lost(seed: int) -> None:
    chance = random.Random(seed)
    alphabet = "ab,/. é日" if seed % 2 else "ab "

    def cell() -> str:
        return "".join(chance.choices(alphabet, k=chance.randrange(60))).strip()

    names = [f"c{n}" for n in range(chance.randrange(1, 6))]
    rows = [[cell() for _ in names] for _ in range(chance.randrange(1, 5))]
    width = chance.randrange(40, 120)
    head, lines = table_lines(names, rows, width)
    assert all(cells_wide(line) <= width for line in (head, *lines))
    kept = sorted("".join("".join(row) for row in rows).replace(" ", ""))
    shown = sorted("".join(lines).replace(" ", ""))
    labels = sorted(
        "" if head else "".join(n * sum(bool(r[i]) for r in rows) for i, n in enumerate(names))
    )
    assert shown == sorted([*kept, *labels])


def test_a_long_word_is_folded_after_punctuation() -> None:
    assert fold_text("/data/input/events/000.json", 20) == ["/data/input/events/", "000.json"]
    assert fold_text("x" * 25, 10) == ["x" * 10, "x" * 10, "x" * 5]


def test_a_paragraph_is_indented_from_its_second_line_on() -> None:
    assert text_lines("note: one two three", 12, "  ") == ["note: one", "  two three"]
    assert text_lines("note: one two three", None, "  ") == ["note: one two three"]


def test_what_stands_in_backticks_is_not_folded() -> None:
    assert text_lines("  to undo, run `undo --now` here", 20, "  ") == [
        "  to undo, run",
        "  `undo --now` here",
    ]
    assert text_lines("run `undo what was done` soon", 12, "  ") == [
        "run",
        "  `undo what was done`",
        "  soon",
    ]
    assert text_lines("`undo what was done` or a_very_long_name", 12) == [
        "`undo what was done`",
        "or",
        "a_very_long_",
        "name",
    ]


def deleted(path: str, size: int, why: str, root: str = "") -> Change:
    return Change(path, Stamp(size, 0), None, why, root)


CHANGES = [
    deleted("state/0/0/7.delta", 100, "delta of version 7"),
    deleted("state/0/0/8.delta", 100, "delta of version 8"),
    deleted("state/0/0/8.snapshot", 300, "snapshot of version 8"),
    deleted("state/0/1/8.delta", 100, "delta of version 8"),
    deleted("state/1/0/left/8.delta", 50, "delta of version 8"),
    deleted("offsets/7", 10, "batch after 6"),
    Change("metadata", None, b"12345", "new id {braces}"),
    deleted("part-0.parquet", 2048, "written after batch 6", "sink"),
]


def test_files_of_one_directory_and_partitions_of_one_operator_share_a_row() -> None:
    assert directory_rows(CHANGES) == [
        ("delete", "state/0/*", "4", "600 B", "delta of version 7 to 8, snapshot of version 8"),
        ("delete", "state/1/0/left", "1", "50 B", "delta of version 8"),
        ("delete", "offsets", "1", "10 B", "batch after 6"),
        ("create", ".", "1", "5 B", "new id {braces}"),
        ("delete", "sink:.", "1", "2.0 KiB", "written after batch 6"),
    ]


def test_reasons_with_commas_are_separated_by_semicolons() -> None:
    [row] = directory_rows(
        [
            deleted("state/0/0/4.delta", 1, "version 4, the same state as 3"),
            deleted("state/0/0/5.delta", 1, "version 5, the same state as 4"),
        ]
    )
    assert row[-1] == "version 4, the same state as 3; version 5, the same state as 4"


def test_a_plan_for_a_continuous_query_speaks_of_epochs_but_leaves_the_rows_alone() -> None:
    plan = Plan(
        "put", "as batch 3", tuple(CHANGES[5:6]), warnings=("A batch.",), details=("batch 3",)
    )
    said = word_for_epochs(plan)
    assert (said.summary, said.warnings, said.details) == (
        "as epoch 3",
        ("An epoch.",),
        ("batch 3",),
    )
    assert [each.why for each in said.changes] == ["epoch after 6"]


def test_a_dry_run_says_what_is_to_be_done_and_an_edit_what_was_done() -> None:
    plan = Plan("rewind", "", tuple(CHANGES))
    assert (plan.counts_to_do, plan.counts) == ("1 to create, 7 to delete", "1 created, 7 deleted")


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
