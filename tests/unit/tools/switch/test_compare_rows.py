"""Rows are compared as sets with counts, in the way that the kind of output asks for."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal

from epochal.tools.switch.compare_rows import (
    OutputDifference,
    Row,
    Rows,
    compare,
    count_rows,
    pairs_of,
    subtract_moved,
)

NOTHING = Rows()


def rows(*values: str) -> Rows:
    return Rows(values)


def test_order_does_not_matter_but_counts_do() -> None:
    a = count_rows([{"k": 1, "v": 2}, {"k": 2, "v": 3}])
    b = count_rows([{"v": 3, "k": 2}, {"v": 2, "k": 1}, {"v": 2, "k": 1}])
    assert compare(
        subtract_moved(a, NOTHING), subtract_moved(b, NOTHING), keyed=False
    ) == OutputDifference(NOTHING, rows('{"k": 1, "v": 2}'))


def test_values_that_json_does_not_have_are_compared_by_their_text() -> None:
    def row(cents: str) -> Row:
        seen = datetime(2026, 1, 1, tzinfo=UTC)
        return {"at": seen, "sum": Decimal(cents), "raw": b"\x01", "none": None}

    assert count_rows([row("1.10")]) == count_rows([row("1.10")])
    assert count_rows([row("1.10")]) != count_rows([row("1.1")])
    assert list(count_rows([row("1.10")])) == [
        '{"at": "2026-01-01 00:00:00+00:00", "none": null, "raw": "01", "sum": "1.10"}'
    ]


def test_ignored_columns_are_left_out() -> None:
    assert count_rows([{"k": 1, "now": 5}], ["now"]) == count_rows([{"k": 1, "now": 6}], ["now"])


def test_a_row_in_a_new_and_in_a_removed_file_was_only_moved() -> None:
    assert subtract_moved(rows("x", "y"), rows("x")).added == rows("y")


def test_output_that_is_replaced_as_a_whole_is_compared_as_a_whole() -> None:
    a = subtract_moved(rows("k1=5"), rows("k1=4"), rows("k0=1", "k1=5"))
    same = subtract_moved(rows("k0=1", "k1=5"), NOTHING, rows("k0=1", "k1=5"))
    lost = subtract_moved(rows("k1=5"), NOTHING, rows("k1=5"))
    assert not compare(a, same, keyed=False)
    assert compare(a, lost, keyed=False) == OutputDifference(rows("k0=1"), NOTHING)


def test_of_rows_that_replace_others_by_key_older_ones_need_not_be_in_the_clones_output() -> None:
    a = subtract_moved(rows("k1=5"), rows("k1=4"), rows("k0=1", "k1=5"))
    same = subtract_moved(rows("k1=5"), NOTHING, rows("k1=5"))
    wrong = subtract_moved(rows("k1=6"), NOTHING, rows("k1=6"))
    assert not compare(a, same, keyed=True)
    assert compare(a, wrong, keyed=True) == OutputDifference(rows("k1=5"), rows("k1=6"))


def test_rows_with_the_same_key_are_shown_side_by_side() -> None:
    a = count_rows([{"k": 1, "v": 2}, {"k": 3, "v": 0}])
    b = count_rows([{"k": 1, "v": 9}, {"k": 2, "v": 0}])
    assert pairs_of(OutputDifference(a, b), ["k"], 5) == [
        ('{"k": 1, "v": 2}', '{"k": 1, "v": 9}'),
        (None, '{"k": 2, "v": 0}'),
        ('{"k": 3, "v": 0}', None),
    ]
    assert pairs_of(OutputDifference(a, b), [], 1) == [
        ('{"k": 1, "v": 2}', None),
        (None, '{"k": 1, "v": 9}'),
    ]
