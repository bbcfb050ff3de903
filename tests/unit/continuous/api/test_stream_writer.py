"""Which sinks need a checkpoint, triggers as options, what readers and writers print."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from epochal.connectors.generator import GeneratorSource
from epochal.continuous.api.readwriter import StreamReader
from epochal.continuous.api.stream import Stream
from epochal.continuous.api.stream_writer import StreamWriter, trigger_options
from epochal.continuous.plan.logical import Stateful, StreamSource, preorder
from epochal.errors import OptionError


class _Context:
    defaultParallelism = 2


class _Session:
    sparkContext = _Context()

    def __init__(self, **conf: str) -> None:
        self.conf = {key.replace("__", "."): value for key, value in conf.items()}


def writer(**conf: str) -> StreamWriter:
    source = GeneratorSource(pa.schema([("n", pa.int64())]), cast(Any, None))
    return StreamReader(cast(Any, _Session(**conf))).format(source).load().write_stream


@pytest.mark.parametrize("sink", ["parquet", "JSON", "csv", "text", "kafka", "pubsub"])
def test_output_that_lasts_needs_a_checkpoint_that_lasts(sink: str) -> None:
    with pytest.raises(OptionError) as refused:
        writer().format(sink).definition("/out")
    assert str(refused.value) == (
        f"{sink}: the query has no checkpointLocation. Without it the next start would process all "
        f"input again and write its rows a second time. Set .option('checkpointLocation', PATH)."
    )
    given = writer().format(sink).option("checkpointlocation", "/ck")
    assert given.definition("/out").options.checkpoint_location == "/ck"


def test_a_query_to_try_things_out_needs_none() -> None:
    tries = [writer().foreach(print), *(writer().format(name) for name in ("console", "noop"))]
    assert [each.definition().options.checkpoint_location for each in tries] == [None] * 3


def test_the_session_has_a_directory_per_query_name() -> None:
    shared = writer(spark__sql__streaming__checkpointLocation="/all").format("parquet")
    named = shared.query_name("orders").definition("/out")
    assert named.options.checkpoint_location == "/all/orders"
    own = shared.option("checkpointLocation", "/own").definition("/out")
    assert own.options.checkpoint_location == "/own"


def test_a_query_without_a_name_has_a_directory_of_its_own_there() -> None:
    shared = writer(spark__sql__streaming__checkpointLocation="/all").format("parquet")
    places = [shared.definition("/out").options.checkpoint_location for _ in range(2)]
    assert all(place is not None and place.startswith("/all/") for place in places)
    assert places[0] != places[1]


@pytest.mark.parametrize(
    ("given", "options"),
    [
        ({"epoch": "50 milliseconds"}, {"epoch": "50 milliseconds"}),
        ({"processingTime": "5 seconds"}, {"epoch": "5 seconds"}),
        ({"processingTime": "0 seconds"}, {}),
        ({"continuous": "1 second"}, {"epoch": "1 second"}),
        ({"availableNow": True}, {"availableNow": "true"}),
        ({"once": True, "epoch": None}, {"once": "true"}),
    ],
)
def test_a_trigger_is_an_option(given: dict[str, Any], options: dict[str, str]) -> None:
    assert trigger_options(given) == options


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({}, "exactly one trigger, but none were given"),
        ({"epoch": "1 second", "once": True}, "exactly one trigger, but epoch, once were given"),
        ({"availableNow": False}, "trigger(availableNow=...) must be True, not False"),
        ({"realTime": "5 minutes"}, "Use trigger(epoch='100 milliseconds')"),
    ],
)
def test_what_is_not_one_trigger_is_refused(given: dict[str, Any], reason: str) -> None:
    with pytest.raises(OptionError) as refused:
        trigger_options(given)
    assert reason in str(refused.value)


COLUMNS: Any = {"user": pa.string(), "at": pa.timestamp("us", "UTC"), "amount": pa.int64()}
SCHEMA = pa.schema(COLUMNS)


SESSION: Any = SimpleNamespace(conf={"spark.sql.session.timeZone": "UTC"})
"""As much of a SparkSession as a stream asks for before it starts."""


def source(name: str = "kafka") -> Stream:
    return Stream(SESSION, StreamSource(0, name, {}, None, SCHEMA, name))


def test_a_reader_shows_its_format_and_the_names_of_its_options_only() -> None:
    reader = StreamReader(SESSION)
    assert repr(reader) == "StreamReader(no format)"
    named = reader.format("kafka").option("subscribe", "t").option("kafka.ssl.key.password", "x")
    assert repr(named) == "StreamReader(kafka, options: subscribe, kafka.ssl.key.password)"


def test_a_writer_shows_where_rows_come_from_and_go_without_values_of_options() -> None:
    writer = source().with_watermark("at", "10 seconds").write_stream
    given = writer.format("parquet").output_mode("update").option("checkpointLocation", "/ck")
    assert repr(given) == (
        "StreamWriter(kafka → with_watermark(at, 10 seconds) → parquet, update,"
        " options: checkpointLocation)"
    )


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
