"""What letters contain, how they travel, and which options go together."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from epochal.connectors.dead_letters.dead_letter_rules import (
    BadRowOptions,
    OnBadRow,
    letters_of,
    readable,
    split_bad_row_options,
)
from epochal.connectors.staging.epoch_marker import (
    StagedDeadLetters,
    sink_messages,
    unwrap_letters,
    wrap_letters,
)
from epochal.errors import OptionError

ORIGIN = {"query": "q", "epoch": 41, "task": 3}
LATE = pa.array([8_000_000], pa.int32()).cast(pa.date32())
"""A day of the year 23873, which Python's dates do not reach."""


def letters(batch: pa.RecordBatch, bad: dict[int, str], **more: Any) -> list[Any]:
    return [json.loads(each) for each in letters_of(batch, bad, ORIGIN, **more)]


def test_a_letter_names_its_query_epoch_task_and_reason_and_has_the_row() -> None:
    batch = pa.record_batch({"id": [1, 2, 3], "name": ["a", None, "c"]})
    assert letters(batch, {2: "too bad", 1: "sad"}) == [
        {"query": "q", "epoch": 41, "task": 3, "reason": "sad", "row": {"id": 2}},
        {"query": "q", "epoch": 41, "task": 3, "reason": "too bad", "row": {"id": 3, "name": "c"}},
    ]


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (pa.scalar(b"\x00\xff"), "AP8="),
        (pa.scalar(float("nan")), "NaN"),
        (pa.scalar(float("-inf")), "-Infinity"),
        (pa.scalar(Decimal("1.50")), Decimal("1.50")),
        (pa.scalar(dt.date(2024, 2, 29)), "2024-02-29"),
        (LATE[0], "23873-04-04"),
        (pa.array([{"at": LATE[0]}], pa.struct([("at", pa.date32())]))[0], {"at": "23873-04-04"}),
        (pa.scalar(1709168523000004, pa.timestamp("us")), "2024-02-29T01:02:03.000004"),
        (pa.scalar(dt.datetime(2024, 1, 1, tzinfo=dt.UTC)), "2024-01-01T00:00:00.000000Z"),
        (pa.scalar([1, None], pa.list_(pa.int64())), [1, None]),
        (pa.scalar([("a", 1), ("a", 2)], pa.map_(pa.string(), pa.int64())), {"a": 2}),
        (pa.array([b"a\xffb"]).view(pa.string())[0], "a\\xffb"),
        (pa.scalar(None, pa.string()), None),
    ],
)
def test_every_value_has_a_form_in_json(value: Any, written: Any) -> None:
    assert readable(value) == written


def test_the_row_of_a_letter_is_cut_to_the_size_that_a_topic_takes() -> None:
    batch = pa.record_batch({"text": ['"' * 20_000]})
    (cut,) = letters_of(batch, {0: "too large"}, ORIGIN, max_bytes=10_000)
    assert len(cut) <= 10_000
    found = json.loads(cut)
    assert found["reason"] == "too large"
    assert found["rowCut"].startswith('{"text":"\\"\\"')
    assert len(found["rowCut"]) > 2_000


def test_an_envelope_returns_the_message_and_the_file() -> None:
    staged = StagedDeadLetters("e1-a2-t3.json", 77, 5)
    assert unwrap_letters(wrap_letters(b"the sink's", staged)) == (b"the sink's", staged)
    assert unwrap_letters(b"bare") == (b"bare", None)
    assert sink_messages([wrap_letters(b"one", staged), b"two"]) == (b"one", b"two")


def test_options_about_bad_rows_are_taken_from_those_of_the_sink() -> None:
    found, rest = split_bad_row_options(
        {"ONBADROW": "deadletter", "deadLetterPath": "/tmp/x", "header": "true"}, "csv"
    )
    assert found == BadRowOptions(on_bad_row=OnBadRow.DEAD_LETTER, dead_letter_path="/tmp/x")
    assert rest == {"header": "true"}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"onBadRow": "deadLetter"}, "but neither is given"),
        (
            {"onBadRow": "deadLetter", "deadLetterPath": "a", "deadLetterTopic": "b"},
            "but deadLetterPath and deadLetterTopic is given",
        ),
        ({"deadLetterPath": "a"}, "deadLetterPath has no effect with onBadRow=fail"),
        ({"onBadRow": "skip"}, "must be one of fail, deadLetter, not 'skip'"),
    ],
)
def test_options_that_do_not_go_together_are_refused(given: dict[str, str], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        split_bad_row_options(given, "json")
