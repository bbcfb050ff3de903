"""What the two writers share: output modes, triggers, options, the checkpoint's place, the sink."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pyarrow as pa

from epochal.connectors.contract import Sink
from epochal.connectors.formats import SinkFormat
from epochal.connectors.registry import open_sink, outlives_query
from epochal.continuous.api.step_names import format_name
from epochal.continuous.run.query_settings import EngineOptions, split_options
from epochal.continuous.run.query_spec import SinkDefinition
from epochal.errors import OptionError
from epochal.files import Files, join_url

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

UPDATE, APPEND, COMPLETE = "update", "append", "complete"
OUTPUT_MODES = (APPEND, UPDATE, COMPLETE)

CHECKPOINTS = "spark.sql.streaming.checkpointLocation"
"""The session's directory for the checkpoints of queries that name none."""


def check_mode(mode: str) -> str:
    """Return the output mode in lower case; OptionError if there is none of that name."""
    if mode.lower() not in OUTPUT_MODES:
        raise OptionError(f"Output modes are {', '.join(OUTPUT_MODES)}, not {mode!r}.")
    return mode.lower()


def option_text(value: Any) -> str:
    """Return an option's value as text, booleans as Spark spells them."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def trigger_options(triggers: Mapping[str, Any]) -> dict[str, str]:
    """Return the options that a trigger stands for. Exactly one kind of trigger must be given."""
    chosen = {name: value for name, value in triggers.items() if value is not None}
    if len(chosen) != 1:
        kinds = ", ".join(chosen) or "none"
        raise OptionError(
            f"A query has exactly one trigger, but {kinds} were given. Use trigger(epoch='100 "
            f"milliseconds'), or trigger(availableNow=True) to stop when all input is read."
        )
    ((name, value),) = chosen.items()
    match name:
        case "availableNow" | "once":
            if value is not True:
                raise OptionError(f"trigger({name}=...) must be True, not {value!r}.")
            return {name: "true"}
        case "realTime":
            raise OptionError(
                f"trigger(realTime={value!r}) is the length of a batch of Spark's real-time mode, "
                f"and an epoch is much shorter. Use trigger(epoch='100 milliseconds')."
            )
        case "processingTime" if str(value).split()[0] == "0":
            return {}  # as often as possible: the usual length of an epoch
    return {"epoch": str(value)}


def output_options(
    spark: SparkSession, sink: Any, options: Mapping[str, str]
) -> tuple[EngineOptions, dict[str, str]]:
    """Split options into the engine's, with a checkpoint if there is one, and the sink's."""
    from epochal.continuous.catalyst.spark_objects import absolute_paths

    engine, rest = split_options(absolute_paths(options))
    if engine.checkpoint_location is None:
        shared = spark.conf.get(CHECKPOINTS, None)
        if shared:
            place = join_url(shared, engine.query_name or str(uuid4()))
            place = absolute_paths({"path": place})["path"]
            engine = replace(engine, checkpoint_location=place)
    if engine.checkpoint_location is None and outlives_query(sink):
        raise OptionError(
            f"{format_name(sink)}: the query has no checkpointLocation. Without it the next start "
            f"would process all input again and write its rows a second time. Set "
            f".option('checkpointLocation', PATH)."
        )
    return engine, rest


def sink_definition(
    sink: Any, options: Mapping[str, str], mode: str, partitioned: tuple[str, ...]
) -> SinkDefinition:
    """Return the sink as the engine opens it."""

    def opened(checkpoint: Files, query_id: str, schema: pa.Schema) -> Sink:
        return open_sink(
            sink,
            options,
            schema,
            output_mode=mode,
            partition_by=partitioned,
            checkpoint=checkpoint,
            query_id=query_id,
        )

    is_named = isinstance(sink, str | tuple | SinkFormat)
    return SinkDefinition(format_name(sink) if is_named else "sink", opened)
