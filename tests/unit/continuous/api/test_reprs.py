"""What a user sees who prints a reader, a stream, a writer or a query."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from epochal.connectors.generator import GeneratorSource
from epochal.continuous import session, sliding, tumbling
from epochal.continuous.api.query_handle import StreamingQuery
from epochal.continuous.api.readwriter import StreamReader
from epochal.continuous.api.step_names import duration_text
from epochal.continuous.api.stream import Stream
from epochal.continuous.plan.logical import Stateful, StreamSource, preorder
from epochal.continuous.run.run_events import EngineState
from epochal.errors import OptionError

COLUMNS: Any = {"user": pa.string(), "at": pa.timestamp("us", "UTC"), "amount": pa.int64()}
SCHEMA = pa.schema(COLUMNS)


SESSION: Any = SimpleNamespace(conf={"spark.sql.session.timeZone": "UTC"})
"""As much of a SparkSession as a stream asks for before it starts."""


class Processor(StatefulProcessor):  # type: ignore[misc]
    def init(self, handle: StatefulProcessorHandle) -> None:
        self.seen = handle.getValueState("seen", "n int")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        yield from rows

    def close(self) -> None: ...


def source(name: str = "kafka") -> Stream:
    return Stream(SESSION, StreamSource(0, name, {}, None, SCHEMA, name))


def test_a_stream_shows_its_steps_in_one_line() -> None:
    stream = (
        source()
        .map_in_arrow(lambda batches: batches, SCHEMA)
        .with_watermark("at", "10 seconds")
        .transform_with_state(Processor(), key=["user"], output=SCHEMA)
    )
    assert repr(stream) == (
        "Stream(kafka → map_in_arrow → with_watermark(at, 10 seconds)"
        " → transform_with_state by user)"
    )


def test_a_stream_shows_what_is_united_deduplicated_and_counted() -> None:
    events = source("rate").with_watermark("at", "1 minute")
    assert repr(source().union(source("rate")).drop_duplicates(["user", "at"])) == (
        "Stream(union(kafka, rate) → drop_duplicates by user, at)"
    )
    assert repr(events.drop_duplicates_within_watermark(["user"])) == (
        "Stream(rate → with_watermark(at, 1 minute) → drop_duplicates_within_watermark by user)"
    )
    counts = events.group_by("user", window=tumbling("at", "90 seconds")).count("append")
    assert repr(counts) == (
        "Stream(rate → with_watermark(at, 1 minute) → agg(count) by user, tumbling(at, 90 seconds))"
    )


def test_a_filter_and_a_projection_of_arrow_are_steps() -> None:
    stream = source().filter(pc.field("amount") > 3).with_column("twice", pc.field("amount") * 2)
    assert repr(stream) == "Stream(kafka → filter → select(user, at, amount, twice))"
    more = stream.with_column("more", pc.field("amount"))
    assert repr(more).endswith("select(user, at, amount, twice, …))")


@pytest.mark.parametrize(
    ("keys", "window", "shown"),
    [
        (("user",), None, "user"),
        ((), tumbling("at", "1 hour"), "tumbling(at, 1 hour)"),
        (("user",), sliding("at", "1 hour", "5 minutes"), "user, sliding(at, 1 hour, 5 minutes)"),
        (("user",), session("at", "500 milliseconds"), "user, session(at, 500 milliseconds)"),
    ],
)
def test_a_grouped_stream_shows_its_groups(keys: tuple[str, ...], window: Any, shown: str) -> None:
    assert repr(source().group_by(*keys, window=window)) == f"GroupedStream(kafka by {shown})"


def test_a_reader_shows_its_format_and_the_names_of_its_options_only() -> None:
    reader = StreamReader(SESSION)
    assert repr(reader) == "StreamReader(no format)"
    named = reader.format("kafka").option("subscribe", "t").option("kafka.ssl.key.password", "x")
    assert repr(named) == "StreamReader(kafka, options: subscribe, kafka.ssl.key.password)"
    own = GeneratorSource(SCHEMA, cast(Any, None))
    assert repr(reader.format(own)) == "StreamReader(GeneratorSource)"


def test_a_writer_shows_where_rows_come_from_and_go() -> None:
    writer = source().write_stream
    assert repr(writer) == "StreamWriter(kafka → no format, append)"
    assert repr(writer.foreach(print)) == "StreamWriter(kafka → foreach, append)"
    given = writer.format("parquet").output_mode("update").option("checkpointLocation", "/ck")
    assert repr(given) == "StreamWriter(kafka → parquet, update, options: checkpointLocation)"


@pytest.mark.parametrize(("name", "shown"), [(None, ""), ("orders", "'orders', ")])
def test_a_query_shows_its_name_ids_epoch_and_state(name: str | None, shown: str) -> None:
    state = EngineState(message="Processing", committed=41)
    engine = SimpleNamespace(query_id="q", run_id="r", name=name, state=state)
    query = StreamingQuery(cast(Any, engine))
    assert repr(query) == f"StreamingQuery({shown}id=q, run_id=r, epoch=41, 'Processing')"


@pytest.mark.parametrize(
    ("micros", "text"),
    [(0, "0 seconds"), (1_000, "1 millisecond"), (90_000_000, "90 seconds"), (7, "7 microseconds")],
)
def test_durations_are_in_the_largest_unit_that_divides_them(micros: int, text: str) -> None:
    assert duration_text(micros) == text


def test_a_union_may_stand_anywhere_and_is_numbered_through() -> None:
    once = source().drop_duplicates(["user"])
    both = once.union(source("rate").drop_duplicates(["amount"])).union(source("pubsub"))
    assert repr(both) == (
        "Stream(union(kafka → drop_duplicates by user, rate → drop_duplicates by amount, pubsub))"
    )
    counts = both.group_by("user").count()
    numbers = [node.number for node in preorder(counts.tree) if isinstance(node, StreamSource)]
    operators = [node.operator_id for node in preorder(counts.tree) if isinstance(node, Stateful)]
    assert (numbers, operators) == ([0, 1, 2], [2, 0, 1])


def test_a_watermark_may_follow_a_stateful_operator_unless_there_is_one_already() -> None:
    timed = source().drop_duplicates(["user"]).with_watermark("at", "1 minute")
    assert timed.event_time == "at"
    with pytest.raises(OptionError, match="already cannot get another one"):
        timed.drop_duplicates(["amount"]).with_watermark("at", "1 minute")
