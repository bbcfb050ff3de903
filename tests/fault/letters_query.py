"""A driver program that tests kill: numbers into JSON files, every fifth of them a dead letter.

    python -m tests.fault.letters_query MASTER CHECKPOINT OUT [OPTION=VALUE...]

Every fifth row has a date that no JSON file can hold. Its letter goes to OUT/../letters. On SIGTERM
the program stops its query gracefully and exits with 0. It exits with 3 if the query failed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from tests.fault.keyed_sums import ROWS_PER_SECOND, run_until_told
from tests.fault.sums import ENDURING
from tests.spark.sessions import session

from epochal import read_stream

BAD_DAY, EVERY = 8_000_000, 5


def dated(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        value = batch.column("value")
        days = [BAD_DAY if each % EVERY == 0 else 1 for each in value.to_pylist()]
        day = pa.array(days, pa.int32()).cast(pa.date32())
        yield pa.RecordBatch.from_arrays([value, day], names=["value", "day"])


def main(master: str, checkpoint: str, out: str, *options: str) -> None:
    spark = session(master, spark__deploy__maxExecutorRetries="-1", spark__locality__wait="0s")
    stream = (
        read_stream(spark).format("rate").options(rowsPerSecond=ROWS_PER_SECOND, numPartitions=3)
    )
    given = dict(option.split("=", 1) for option in options)
    usual = {
        **ENDURING,
        "checkpointLocation": checkpoint,
        "onBadRow": "deadLetter",
        "deadLetterPath": str(Path(out).parent / "letters"),
    }
    rows = stream.load().map_in_arrow(dated, "value long, day date")
    writer = rows.write_stream.format("json").options(**{**usual, **given})
    run_until_told(lambda: writer.start(out))


if __name__ == "__main__":
    main(*sys.argv[1:])
