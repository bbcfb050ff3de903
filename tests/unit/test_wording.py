"""Numbers, times and sizes in words."""

from __future__ import annotations

import pytest

from epochal.wording import counted, duration_text, of_epochs, size_text, span, time_text


@pytest.mark.parametrize(
    ("number", "noun", "text"),
    [
        (1, "batch", "1 batch"),
        (2, "batch", "2 batches"),
        (2, "epoch", "2 epochs"),
        (0, "entry", "0 entries"),
        (1, "entry", "1 entry"),
        (12_000, "key", "12,000 keys"),
        (3, "new key", "3 new keys"),
        (1, "query", "1 query"),
        (5, "query", "5 queries"),
    ],
)
def test_counts_in_singular_and_plural(number: int, noun: str, text: str) -> None:
    assert counted(number, noun) == text


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "-"),
        (1, "1970-01-01T00:00:00.001Z"),
        (-5, "1969-12-31T23:59:59.995Z"),
        (9 * 10**18, f"{9 * 10**18} ms"),
    ],
)
def test_times_are_iso_8601_in_utc(ms: int, text: str) -> None:
    assert time_text(ms) == text


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (999, "999 ms"),
        (7_500, "7.5 s"),
        (60_000, "1 min"),
        (452_000, "7 min 32 s"),
        (3_600_000, "1 h"),
        (187 * 60_000, "3 h 7 min"),
        (52 * 3_600_000, "2 d 4 h"),
    ],
)
def test_durations_have_two_units_at_most(ms: int, text: str) -> None:
    assert duration_text(ms) == text


def test_sizes_have_a_binary_unit() -> None:
    sizes = [0, 1023, 1024, 1_572_864, 5 * 2**40]
    assert [size_text(size) for size in sizes] == [
        "0 B",
        "1023 B",
        "1.0 KiB",
        "1.5 MiB",
        "5120.0 GiB",
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a batch; Batches 3 to 5", "an epoch; Epochs 3 to 5"),
        ("A batch, batch 5 and the micro-batch", "An epoch, epoch 5 and the micro-batch"),
        ("Use `rewind --to-batch 5`: batch 5", "Use `rewind --to-batch 5`: epoch 5"),
        (".epochal/batches/7", ".epochal/batches/7"),
        ('source 0 {"batch":{"0":5}}, batch 3', 'source 0 {"batch":{"0":5}}, epoch 3'),
        ("every batch: add batch:int", "every epoch: add batch:int"),
    ],
)  # fmt: skip
def test_batches_of_a_continuous_query_are_epochs_but_commands_keep_their_words(
    text: str, said: str
) -> None:
    assert of_epochs(text) == said


def test_a_span_of_one_is_singular() -> None:
    assert span(7, 7, "batch") == "batch 7"
    assert span(7, 9, "batch") == "batches 7 to 9"
    assert span(7, 9, "epoch") == "epochs 7 to 9"
