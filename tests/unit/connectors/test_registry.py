from __future__ import annotations

from datetime import timedelta
from io import StringIO
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from epochal.connectors.at_least_once import NoopSink
from epochal.connectors.console import ConsoleOptions, ConsoleSink
from epochal.connectors.contract import WriterContext
from epochal.connectors.foreach import ForeachSink
from epochal.connectors.memory import MemoryOutput, MemorySink, MemoryStream
from epochal.connectors.rate import RATE_SCHEMA, RateOptions, RatePosition, RateSource, Schedule
from epochal.connectors.registry import open_sink, open_source, source_schema
from epochal.errors import MalformedFileError, OptionError
from epochal.testing.clock import ManualClock
from epochal.testing.files import MemoryFiles

SCHEMA = pa.schema([pa.field("n", pa.int64())])


def sink(format: Any, mode: str = "append", **options: str) -> Any:
    return open_sink(
        format, options, SCHEMA, output_mode=mode, checkpoint=MemoryFiles(), query_id="q"
    )


def test_formats_are_found_by_name_in_any_case() -> None:
    assert source_schema("RATE", {"rowsPerSecond": "5"}, None) == RATE_SCHEMA
    assert isinstance(open_source("Rate", {}, None, MemoryFiles(), 0), RateSource)
    assert isinstance(sink("console"), ConsoleSink)
    assert isinstance(sink("noop"), NoopSink)


@pytest.mark.parametrize(
    ("act", "said"),
    [
        (lambda: source_schema("parket", {}, SCHEMA), r"no source 'parket'. Did you mean parquet"),
        (lambda: sink("consol"), "no sink 'consol'. Did you mean console"),
        (lambda: source_schema("rate", {"rows": "1"}, None), "rate has no option 'rows'"),
        (lambda: source_schema("rate", {}, SCHEMA), "Remove the schema"),
        (lambda: source_schema("json", {"path": "/x"}, None), "cannot infer its schema"),
        (lambda: source_schema("json", {}, SCHEMA), "option path must be given"),
        (lambda: sink("memory"), "MemoryOutput"),
        (lambda: source_schema("memory", {}, None), "MemoryStream"),
        (lambda: sink("parquet", "complete", path="/x"), "output mode complete is not possible"),
        (lambda: sink(object()), "cannot be a sink: it has no begin_commit, close"),
        (lambda: source_schema(object(), {}, None), "cannot be a source: it has no acknowledge"),
        (lambda: sink(MemoryOutput(), path="/x"), "takes no options"),
    ],
)
def test_an_error_about_a_format_says_what_to_do(act: Any, said: str) -> None:
    with pytest.raises(OptionError, match=said):
        act()


def test_an_object_is_used_as_it_is_and_a_class_is_called_with_the_options() -> None:
    class Mine(MemoryStream):
        def __init__(self, options: dict[str, str]) -> None:
            super().__init__(SCHEMA, partitions=int(options["parts"]))

    stream = MemoryStream(SCHEMA)
    assert open_source(stream, {}, None, MemoryFiles(), 0) is stream
    opened = open_source(Mine, {"parts": "3"}, None, MemoryFiles(), 0)
    assert sorted(opened.initial()) == ["0", "1", "2"]


def test_a_memory_output_keeps_only_the_newest_result_in_complete_mode() -> None:
    output = MemoryOutput()
    opened = sink(output, "complete")
    assert isinstance(opened, MemorySink)
    for epoch, numbers in enumerate([[1], [1, 2], []]):
        output.take(epoch, pa.table({"n": pa.array(numbers, pa.int64())}))
    assert output.table()["n"].to_pylist() == [1, 2]


def rows(*numbers: int) -> pa.RecordBatch:
    return pa.record_batch([pa.array(numbers, pa.int64())], schema=SCHEMA)


class Calls:
    """A ForeachWriter that records its calls."""

    def __init__(self, skip: int = -1, fail: int = -1) -> None:
        self.calls: list[object] = []
        self._skip, self._fail = skip, fail

    def open(self, partition_id: int, epoch_id: int) -> bool:
        self.calls.append(("open", partition_id, epoch_id))
        return epoch_id != self._skip

    def process(self, row: Any) -> None:
        if row.n == self._fail:
            raise ValueError("no such number")
        self.calls.append(row.n)

    def close(self, error: Exception | None) -> None:
        self.calls.append(("close", error and str(error)))


def test_a_foreach_writer_is_opened_and_closed_for_each_epoch_that_has_rows() -> None:
    user = Calls(skip=6)
    writer = ForeachSink(user).writers.open(WriterContext(2, 1, "run", SCHEMA, 5))
    writer.write(rows(1, 2))
    writer.write(rows(3))
    prepared = [writer.cut(5)]
    writer.write(rows(4))
    prepared += [writer.cut(6), writer.cut(7)]
    assert [prepare() for prepare in prepared] == [b"", b"", b""]
    writer.close()
    assert user.calls == [
        *(("open", 2, 5), 1, 2, 3, ("close", None)),
        *(("open", 2, 6), ("close", None)),
    ]


def test_a_failing_foreach_writer_is_closed_with_its_error_and_stops_the_epoch() -> None:
    user = Calls(fail=2)
    writer = ForeachSink(user).writers.open(WriterContext(0, 1, "run", SCHEMA))
    writer.write(rows(1, 2, 3))
    with pytest.raises(ValueError, match="no such number"):
        writer.cut(0)()
    with pytest.raises(ValueError, match="no such number"):
        writer.write(rows(4))
    writer.close()
    assert user.calls == [("open", 0, 0), 1, ("close", "no such number")]


def test_a_function_of_batches_gets_all_rows_of_an_epoch_in_one_call() -> None:
    seen: list[tuple[list[Any], int]] = []
    user = lambda batch, epoch: seen.append((batch.column(0).to_pylist(), epoch))  # noqa: E731
    writer = ForeachSink(user, by_batch=True).writers.open(WriterContext(0, 1, "r", SCHEMA))
    writer.write(rows(1))
    writer.write(rows(2))
    first = writer.cut(8)
    second = writer.cut(9)
    first()
    second()
    assert seen == [([1, 2], 8)]


def test_the_console_prints_the_first_rows_as_spark_shows_them() -> None:
    out = StringIO()
    console = ConsoleSink(ConsoleOptions(num_rows=2), out)
    writer = console.writers.open(WriterContext(0, 1, "run", SCHEMA))
    writer.write(rows(1, 22, 333))
    message = writer.cut(4)()
    console.commit(4, [message])
    console.commit(4, [message])
    assert out.getvalue() == (
        "-------------------------------------------\nBatch: 4\n"
        "-------------------------------------------\n"
        "+---+\n|  n|\n+---+\n|  1|\n| 22|\n+---+\nonly showing top 2 rows\n\n"
    )


def test_options_of_a_sink_are_checked_before_it_is_created(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="no option 'pat'"):
        sink("parquet", pat=str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


CREATED = 1_700_000_000_000


def source(clock: ManualClock, files: MemoryFiles | None = None, **options: int) -> RateSource:
    return RateSource(RateOptions(**options), files or MemoryFiles(), 0, clock=clock)  # type: ignore[arg-type]


@pytest.mark.parametrize(("rate", "ramp"), [(1, 0), (7, 0), (1000, 0), (3333, 0), (10, 4), (3, 9)])
def test_a_row_is_read_in_the_millisecond_it_is_due_and_no_earlier(rate: int, ramp: int) -> None:
    schedule = Schedule(CREATED, rate, ramp)
    stamps = schedule.stamps_ms(range(4 * rate))
    for now_ms in range(CREATED - 2, CREATED + 2500, 7):
        assert schedule.due_before(now_ms) == min(int((stamps <= now_ms).sum()), 4 * rate)


def test_the_offset_is_the_last_second_that_every_partition_has_read() -> None:
    clock = ManualClock(CREATED)
    rate = source(clock, rows_per_second=10, num_partitions=2)
    at = {"0": RatePosition(30, 2).text(), "1": RatePosition(19, 2).text()}
    assert rate.offset(at) == "1"
    assert rate.boundary(at) == rate.resume("3")


def test_closing_waits_for_the_second_that_was_logged_to_pass() -> None:
    clock = ManualClock(CREATED)
    rate = source(clock, rows_per_second=1, num_partitions=1)
    reader = rate.readers.open(rate.initial())
    assert reader.read(10) is not None  # the row of second 0 is due at its beginning
    assert rate.offset(reader.positions()) == "1"
    rate.close()
    assert clock.now_ms() == CREATED + 1000


def test_no_partition_starves_when_there_is_more_than_fits() -> None:
    clock = ManualClock(CREATED)
    rate = source(clock, rows_per_second=1000, num_partitions=2)
    reader = rate.readers.open(rate.initial())
    clock.advance(100)
    for _ in range(4):
        reader.read(10)
    assert [int(at.split(":")[1].split(",")[0]) for at in reader.positions().values()] == [40, 41]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"rows_per_second": 0}, "rowsPerSecond must be positive, not 0"),
        ({"num_partitions": 0}, "numPartitions must be positive"),
        ({"rows_per_second": 2**62, "ramp_up_time": timedelta(seconds=9)}, "rampUpTime must not"),
    ],
)
def test_impossible_options_are_rejected(options: dict[str, int], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        RateOptions(**options)  # type: ignore[arg-type]


def test_an_offset_that_is_not_a_number_is_rejected() -> None:
    with pytest.raises(MalformedFileError, match="not a number of seconds"):
        source(ManualClock()).resume('{"logOffset":3}')
