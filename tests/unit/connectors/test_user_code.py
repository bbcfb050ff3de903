"""The errors of functions that write rows begin at the user's line too."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from epochal.connectors.contract import WriterContext
from epochal.connectors.foreach import ForeachSink
from epochal.connectors.user_code import is_users, report_of

SCHEMA = pa.schema([("n", pa.int64())])
CONTEXT = WriterContext(0, 1, "run", SCHEMA, 0)


@pytest.mark.parametrize("by_batch", [False, True])
def test_a_function_that_cannot_write_is_the_first_line_of_the_report(by_batch: bool) -> None:
    def refuse(*_rows: Any) -> None:
        raise OSError("no route to the database")

    writer = ForeachSink(refuse, by_batch=by_batch).writers.open(CONTEXT)
    writer.write(pa.RecordBatch.from_pydict({"n": [1]}, schema=SCHEMA))
    with pytest.raises(OSError, match="no route") as failed:
        writer.cut(0)()
    writer.close()
    lines = report_of(failed.value).splitlines()
    assert is_users(failed.value)
    assert lines[1].endswith(", in refuse")
    assert lines[-1] == "OSError: no route to the database"
