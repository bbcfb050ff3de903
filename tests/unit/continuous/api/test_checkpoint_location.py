"""Which sinks need a checkpoint."""

from __future__ import annotations

from typing import Any, cast

import pyarrow as pa
import pytest

from epochal.connectors.generator import GeneratorSource
from epochal.continuous.api.readwriter import StreamReader
from epochal.continuous.api.stream_writer import StreamWriter
from epochal.errors import OptionError


class _Context:
    defaultParallelism = 2


class _Settings:
    def get(self, key: str, default: str | None) -> str | None:
        return default


class _Session:
    sparkContext = _Context()
    conf = _Settings()


def writer() -> StreamWriter:
    source = GeneratorSource(pa.schema([("n", pa.int64())]), cast(Any, None))
    return StreamReader(cast(Any, _Session())).format(source).load().write_stream


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
