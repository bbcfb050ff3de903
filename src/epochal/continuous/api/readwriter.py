"""Where the rows of a continuous query come from: `epochal.read_stream(spark)`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from epochal.connectors.registry import pinned_options, source_identity, source_schema
from epochal.continuous.api.step_names import format_name, options_of
from epochal.continuous.api.stream import Stream
from epochal.continuous.api.stream_writer import StreamWriter, option_text
from epochal.continuous.catalyst.given_schema import arrow_schema
from epochal.continuous.catalyst.spark_objects import absolute_paths
from epochal.continuous.operators.deduplication import DropRepeatsSpec
from epochal.continuous.plan.logical import StreamSource
from epochal.errors import OptionError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["StreamReader", "StreamWriter"]


@dataclass(frozen=True, slots=True)
class StreamReader:
    """Defines where rows come from: a format, its options, and a schema if the format needs one."""

    spark: SparkSession
    source: Any = None
    option_texts: Mapping[str, str] | None = None
    columns: pa.Schema | None = None

    def __repr__(self) -> str:
        return (
            f"StreamReader({format_name(self.source)}{options_of(list(self.option_texts or ()))})"
        )

    def format(self, source: Any) -> StreamReader:
        """Set the format by name, or pass a source that implements `connectors.contract.Source`."""
        return replace(self, source=source)

    def option(self, key: str, value: Any) -> StreamReader:
        """Set an option; names are case-insensitive."""
        return replace(self, option_texts={**(self.option_texts or {}), key: option_text(value)})

    def options(self, **options: Any) -> StreamReader:
        """Set several options."""
        texts = {key: option_text(value) for key, value in options.items()}
        return replace(self, option_texts={**(self.option_texts or {}), **texts})

    def schema(self, schema: Any) -> StreamReader:
        """Set the schema of the rows: a DDL string, a Spark type or an Arrow schema."""
        return replace(self, columns=arrow_schema(schema))

    def load(self, path: str | None = None) -> Stream:
        """Return the stream of the source's rows."""
        source, columns = self.source, self.columns
        if source is None:
            raise OptionError("The stream has no source: call .format(...) before .load().")
        options = dict(self.option_texts or {}) | ({} if path is None else {"path": path})
        options = pinned_options(source, options)
        schema = source_schema(source, options, columns)

        name = format_name(source)
        described = f"{name}[{options.get('path', '')}]" if "path" in options else name
        paths = absolute_paths(options)
        stream_source = StreamSource(0, source, paths, columns, schema, described, self.spark)
        stream = Stream(self.spark, stream_source)
        identity = source_identity(source, options)
        if identity is None:
            return stream
        return stream.stage(
            DropRepeatsSpec(identity.columns, schema, identity.window_ms, identity.version)
        )
