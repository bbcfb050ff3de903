"""Two queries are compared where both have read the same, as sets of rows with counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal

import pytest
from tests.unit.checkpoint.samples import SOURCE_FORMAT

from epochal.checkpoint.entries import OffsetEntry
from epochal.checkpoint.file_log import FileEntry
from epochal.epoch.manifest import MANIFEST_KEY, Manifest, manifest_to_json
from epochal.testing.files import MemoryFiles
from epochal.tools.switch.boundaries import Boundary, ReadPosition, common_boundaries, why_none
from epochal.tools.switch.compare_rows import (
    OutputDifference,
    Row,
    Rows,
    compare,
    count_rows,
    pairs_of,
    subtract_moved,
)
from epochal.tools.switch.places import places_of


def place(offset: str, watermark_ms: int = 0) -> ReadPosition:
    return ReadPosition((offset,), watermark_ms, (offset,))


def log(first: int, *ends: int | tuple[int, int]) -> Mapping[int, ReadPosition]:
    pairs = [each if isinstance(each, tuple) else (each, 0) for each in ends]
    return {first + at: place(str(end), mark) for at, (end, mark) in enumerate(pairs)}


def found(
    a: Mapping[int, ReadPosition], b: Mapping[int, ReadPosition]
) -> list[tuple[int, int, str]]:
    return [(each.a, each.b, each.offsets[0] or "") for each in common_boundaries(a, b)]


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (
            log(5, 50, 60, 70, 80),
            log(5, 50, 55, 70, 80),
            [(5, 5, "50"), (7, 7, "70"), (8, 8, "80")],
        ),
        (log(5, 50, 60, 70), log(9, 50, 70), [(5, 9, "50"), (7, 10, "70")]),
        # The last of several epochs with one end counts.
        (log(0, 10, 20, 20, 20), log(0, 10, 20), [(0, 0, "10"), (3, 1, "20")]),
        # Boundaries never go back.
        (log(0, 10, 20, 30), log(0, 20, 10, 30), [(0, 1, "10"), (2, 2, "30")]),
    ],
)
def test_epochs_with_the_same_end_belong_together_whatever_their_numbers_are(
    a: Mapping[int, ReadPosition],
    b: Mapping[int, ReadPosition],
    expected: list[tuple[int, int, str]],
) -> None:
    assert found(a, b) == expected


def test_the_watermark_is_part_of_a_boundary() -> None:
    a, b = log(0, (10, 0), (20, 5), (20, 15)), log(0, (10, 0), (15, 0), (20, 7), (20, 15))
    assert found(a, b) == [(0, 0, "10"), (2, 3, "20")]
    without_state = common_boundaries(a, log(0, (10, 0), (20, 7)), timed=False)
    assert [(each.a, each.b) for each in without_state] == [(0, 0), (2, 1)]


def test_what_was_read_counts_and_not_how_it_is_logged() -> None:
    one = {3: ReadPosition(('{"logOffset":5}',), 0, ("6 files",))}
    other = {4: ReadPosition(('{"logOffset":2}',), 0, ("6 files",))}
    assert common_boundaries(one, other) == [Boundary(3, 4, ('{"logOffset":5}',), 0)]


def test_says_why_there_is_no_common_boundary() -> None:
    assert "the second query has not committed" in why_none(log(0, 1), {})
    assert "the watermarks are 5 and 7 ms" in why_none(log(0, (20, 5)), log(0, (20, 7)))
    apart = why_none(log(3, 20), log(4, 30))
    assert "of the first query, 3, ends at 20, that of the second, 4, at 30" in apart


def checkpoint(*batches: Sequence[str]) -> MemoryFiles:
    """A checkpoint whose file source has logged these files."""
    files = MemoryFiles(prefix="ck")
    for number, names in enumerate(batches):
        entries = [FileEntry(f"file:///in/{name}", 0, number) for name in names]
        files.create(f"sources/0/{number}", SOURCE_FORMAT.serialize(entries))
    return files


def key(files: MemoryFiles, offset: str, *positions: tuple[int, int]) -> str | None:
    entry = OffsetEntry(1, (offset,))
    if positions:
        at = {
            str(number): f'{{"batch":{batch},"file":{file},"row":0,"of":{len(positions)}}}'
            for number, (batch, file) in enumerate(positions)
        }
        manifest = manifest_to_json(Manifest(7, 0, "run", (at,), (), ()))
        entry = OffsetEntry(1, (offset,), extra={MANIFEST_KEY: manifest})
    return places_of(files, {7: entry})[7].key[0]


def log_offset(batch: int) -> str:
    return f'{{"logOffset":{batch}}}'


def test_the_order_of_keys_in_an_offset_does_not_matter() -> None:
    files = MemoryFiles(prefix="ck")
    assert key(files, '{"t":{"0":5,"1":6}}') == key(files, '{"t": {"1": 6, "0": 5}}')


def test_a_file_source_is_as_far_as_the_files_that_it_has_read() -> None:
    one, other = checkpoint("a", "bc", "d"), checkpoint("ca", "b", "d")
    assert key(one, log_offset(1)) == key(other, log_offset(1))
    assert key(one, log_offset(2)) == key(other, log_offset(2))
    assert key(one, log_offset(0)) != key(other, log_offset(0))
    assert key(one, log_offset(-1)) == key(other, log_offset(-1))


def test_the_same_offset_is_another_place_if_the_files_differ() -> None:
    assert key(checkpoint("a", "b"), log_offset(1)) != key(checkpoint("a", "c"), log_offset(1))


def test_an_epoch_that_ended_inside_a_batch_has_read_more_than_its_offset_says() -> None:
    files = checkpoint("a", "bc", "d")
    between = key(files, log_offset(0), (1, 1), (1, 0))
    assert between != key(files, log_offset(0))
    assert between == key(checkpoint("a", "bc", "e"), log_offset(0), (1, 1), (1, 0))
    assert between != key(checkpoint("a", "cb", "d"), log_offset(0), (1, 1), (1, 0))
    assert key(files, log_offset(0), (1, 0), (1, 0)) == key(files, log_offset(0))


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
