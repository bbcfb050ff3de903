"""Which sinks need a checkpoint, and triggers as options."""

from __future__ import annotations

from typing import Any, cast

import pyarrow as pa
import pytest

from epochal.connectors.generator import GeneratorSource
from epochal.continuous.api.readwriter import StreamReader
from epochal.continuous.api.stream_writer import StreamWriter, trigger_options
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
