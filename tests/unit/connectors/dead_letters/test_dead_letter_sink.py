"""Bad rows in front of a real file sink, and what letters of them contain."""

from __future__ import annotations

import datetime as dt
import json
import pickle
from collections.abc import Sequence
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from epochal.checkpoint.entries import CommitEntry, CommitLog, OffsetEntry, OffsetLog
from epochal.checkpoint.file_log import FileSinkLog
from epochal.connectors.contract import Sink, WriterContext
from epochal.connectors.dead_letters.dead_letter_rules import (
    BadRowOptions,
    OnBadRow,
    letters_of,
    readable,
    split_bad_row_options,
)
from epochal.connectors.dead_letters.dead_letter_sink import (
    STAGING,
    CheckedWriter,
    dead_letter_name,
)
from epochal.connectors.registry import open_sink
from epochal.connectors.staging.epoch_marker import (
    StagedDeadLetters,
    sink_messages,
    unwrap_letters,
    wrap_letters,
)
from epochal.epoch.manifest import MANIFEST_KEY, Manifest, manifest_to_json
from epochal.errors import OptionError, SinkConflictError, StorageError
from epochal.files.local import LocalFiles

COLUMNS: dict[str, pa.DataType] = {"id": pa.int64(), "day": pa.date32()}
SCHEMA = pa.schema(COLUMNS)
FLAGGED = SCHEMA.append(pa.field("error", pa.string()))
BAD_DAY = 8_000_000
QUERY = "2f9c6d0e"


def rows(*ids: int) -> pa.RecordBatch:
    """Rows whose date no JSON file can hold if the id is negative."""
    days = pa.array([BAD_DAY if each < 0 else 1 for each in ids], pa.int32()).cast(pa.date32())
    return pa.record_batch([pa.array(ids, pa.int64()), days], schema=SCHEMA)


class Place:
    """A file sink with a directory for letters, over what is on disk."""

    def __init__(self, folder: Path) -> None:
        self.out, self.letters = folder / "out", folder / "letters"
        self.checkpoint = LocalFiles(folder / "checkpoint", durable=False)

    def open(self, attempt: int = 1, schema: pa.Schema = SCHEMA, **options: str) -> Sink:
        given = {"onBadRow": "deadLetter", "deadLetterPath": str(self.letters), **options}
        sink = open_sink(
            "json",
            {"path": str(self.out), **{key: text for key, text in given.items() if text}},
            schema,
            checkpoint=self.checkpoint,
            query_id=QUERY,
        )
        sink.fence(attempt)
        return sink

    def written(self) -> list[int]:
        log = FileSinkLog(str(self.out / "_spark_metadata"), read_only=True)
        names = [each.path.rpartition("/")[2] for each in log.all_files()]
        lines = [line for name in names for line in (self.out / name).read_text().splitlines()]
        return sorted(json.loads(line)["id"] for line in lines)

    def read_letters(self) -> list[Any]:
        files = sorted(self.letters.glob("letters-*")) if self.letters.exists() else []
        found = [json.loads(line) for file in files for line in file.read_text().splitlines()]
        return sorted(found, key=lambda each: (each["epoch"], -each["row"]["id"]))

    def lost(self) -> list[int]:
        return [each["row"]["id"] for each in self.read_letters()]

    def staged(self) -> list[str]:
        return [info.name for info in self.checkpoint.at(STAGING).list()]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def prepared(
    sink: Sink,
    epoch: int,
    per_task: Sequence[Sequence[int]],
    attempt: int = 1,
    schema: pa.Schema = SCHEMA,
) -> list[bytes]:
    found = []
    for task, ids in enumerate(per_task):
        factory = pickle.loads(pickle.dumps(sink.writers))
        with closing(factory.open(WriterContext(task, attempt, "run", schema, epoch))) as writer:
            writer.write(rows(*ids))
            found.append(writer.cut(epoch)())
    return found


def test_good_rows_are_written_and_bad_rows_become_letters(place: Place) -> None:
    sink = place.open()
    messages = prepared(sink, 0, [[1, -2, 3], [-4]])
    assert place.read_letters() == []
    sink.commit(0, messages)
    sink.commit(1, prepared(sink, 1, [[5], []]))
    assert place.written() == [1, 3, 5]
    first, second = place.read_letters()
    reason = first.pop("reason")
    assert reason.startswith("a value cannot be written: ")
    row = {"id": -2, "day": "23873-04-04"}
    assert first == {"query": QUERY, "epoch": 0, "task": 0, "row": row}
    assert (second["task"], second["row"]["id"]) == (1, -4)


def test_a_decided_epoch_is_finished_by_the_next_run(place: Place) -> None:
    decided = prepared(place.open(), 0, [[1, -2], [-3]])
    later = place.open(attempt=2)
    later.commit(0, decided)
    later.commit(0, decided)
    later.commit(1, prepared(later, 1, [[4, -5]], attempt=2))
    assert (place.written(), place.lost()) == ([1, 4], [-2, -3, -5])
    assert place.staged() == []


def test_letters_of_an_attempt_that_failed_are_never_seen_and_are_deleted(place: Place) -> None:
    prepared(place.open(), 0, [[1, -2]])
    place.letters.mkdir()
    (place.letters / f".{dead_letter_name(QUERY, 0, 0)}.1234.tmp").write_text("{")
    (place.letters / f".{dead_letter_name('other', 0, 0)}.1234.tmp").write_text("{")
    later = place.open(attempt=2)
    later.commit(0, prepared(later, 0, [[1, -2]], attempt=2))
    assert len(place.staged()) == 1
    later.commit(1, prepared(later, 1, [[3]], attempt=2))
    assert place.staged() == []
    assert place.lost() == [-2]
    assert [each.name[:14] for each in place.letters.glob(".*")] == [".letters-other"]


def test_other_letters_of_the_same_epoch_are_a_conflict(place: Place) -> None:
    sink = place.open()
    sink.commit(0, prepared(sink, 0, [[-1]]))
    with pytest.raises(SinkConflictError, match="dead letters"):
        sink.commit(0, prepared(sink, 0, [[-2]]))
    assert place.lost() == [-1]


def test_a_lost_or_damaged_staged_file_is_an_error(place: Place) -> None:
    sink = place.open()
    messages = prepared(sink, 0, [[-1]])
    staged = place.checkpoint.at(STAGING)
    (name,) = place.staged()
    staged.replace(name, b"{}")
    with pytest.raises(StorageError, match="its checksum differs"):
        sink.commit(0, messages)
    staged.delete(name)
    with pytest.raises(StorageError, match="the driver cannot see it"):
        sink.commit(0, messages)


def test_a_query_without_a_place_for_pending_letters_does_not_start(place: Place) -> None:
    messages = prepared(place.open(), 0, [[-1]])
    manifest = manifest_to_json(Manifest(0, 1, "run", (), tuple(messages), ()))
    OffsetLog(place.checkpoint.at("offsets")).add(
        0, OffsetEntry(1, (), extra={MANIFEST_KEY: manifest})
    )
    with pytest.raises(OptionError, match="Epoch 0 was decided with dead letters"):
        place.open(onBadRow="", deadLetterPath="")
    CommitLog(place.checkpoint.at("commits")).add(0, CommitEntry(next_watermark_ms=0))
    place.open(onBadRow="", deadLetterPath="")


def test_a_writer_counts_the_letters_of_each_epoch(place: Place) -> None:
    sink = place.open()
    with closing(sink.writers.open(WriterContext(0, 1, "run", SCHEMA))) as writer:
        assert isinstance(writer, CheckedWriter)
        counts = []
        for epoch, ids in enumerate([(1, -2, -3), (4,), (-5,)]):
            writer.write(rows(*ids))
            writer.cut(epoch)
            counts.append(writer.dead_letters)
    assert counts == [2, 0, 1]


def flagged(*found: tuple[int, str | None]) -> pa.RecordBatch:
    errors = pa.array([error for _, error in found], pa.string())
    batch = rows(*(each for each, _ in found))
    return pa.record_batch([*batch.columns, errors], schema=FLAGGED)


def test_a_column_with_reasons_makes_rows_bad_and_is_not_written(place: Place) -> None:
    sink = place.open(schema=FLAGGED, badRowColumn="error")
    with closing(sink.writers.open(WriterContext(0, 1, "run", FLAGGED))) as writer:
        writer.write(flagged((1, None), (2, "no number"), (-3, None), (-4, "no text")))
        sink.commit(0, [writer.cut(0)()])
    assert place.written() == [1]
    (file,) = [each for each in place.out.iterdir() if each.suffix == ".json"]
    assert file.read_text() == '{"id":1,"day":"1970-01-02"}\n'
    reasons = {each["row"]["id"]: each["reason"] for each in place.read_letters()}
    assert reasons[2] == "no number"
    assert reasons[-4] == "no text"
    assert reasons[-3].startswith("a value cannot be written")


def test_a_row_with_a_reason_fails_a_query_without_dead_letters(place: Place) -> None:
    sink = place.open(schema=FLAGGED, onBadRow="", deadLetterPath="", badRowColumn="error")
    with closing(sink.writers.open(WriterContext(0, 1, "run", FLAGGED))) as writer:
        writer.write(flagged((1, None)))
        with pytest.raises(OptionError, match="column error says that a row is bad: no number"):
            writer.write(flagged((2, "no number")))


@pytest.mark.parametrize(
    ("sink", "options", "said"),
    [
        ("json", {"badRowColumn": "nope"}, "there is no such column. The columns are id, day"),
        ("json", {"badRowColumn": "id"}, "badRowColumn is id, which is int64. It must be text"),
        ("json", {"deadLetterPath": "", "deadLetterTopic": "t"}, "only the Kafka sink has a"),
        ("console", {}, "console: this sink refuses no rows"),
    ],
)
def test_options_that_the_sink_cannot_keep_are_refused(
    place: Place, sink: str, options: dict[str, str], said: str
) -> None:
    given = {"onBadRow": "deadLetter", "deadLetterPath": "x", "path": str(place.out), **options}
    with pytest.raises(OptionError, match=said):
        open_sink(
            sink,
            {key: text for key, text in given.items() if text},
            SCHEMA,
            checkpoint=place.checkpoint,
            query_id=QUERY,
        )


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
