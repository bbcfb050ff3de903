"""A driver program that tests kill: running sums of the rate source, by key, into files or a table.

    python -m tests.fault.keyed_sums MASTER CHECKPOINT OUT [OPTION=VALUE...]

The options `format` and `mode` choose another sink and output mode. OUT is where files are written.
With the option mergeKeys, the newest sum of a key replaces the one before.
On SIGTERM it stops its query gracefully and exits with 0. If the query failed, it logs the reason
and exits with 3.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable

from tests.fault.sums import ENDURING, KEYS, OUTPUT, RunningSum
from tests.spark.sessions import session

from epochal import read_stream
from epochal.continuous.api.query_handle import StreamingQuery

ROWS_PER_SECOND = 400


def main(master: str, checkpoint: str, out: str, *options: str) -> None:
    spark = session(master, spark__deploy__maxExecutorRetries="-1", spark__locality__wait="0s")
    stream = (
        read_stream(spark).format("rate").options(rowsPerSecond=ROWS_PER_SECOND, numPartitions=3)
    )
    keyed = stream.load().with_column("k", f"value % {KEYS}")
    sums = keyed.transform_with_state(RunningSum(), key=["k"], output=OUTPUT)
    given = dict(option.split("=", 1) for option in options)
    usual = {**ENDURING, "checkpointLocation": checkpoint}
    form = given.pop("format", "parquet")
    mode = given.pop("mode", "update" if "mergeKeys" in given else "append")
    writer = sums.write_stream.format(form).output_mode(mode).options(**{**usual, **given})
    path = [out] if form in ("parquet", "delta") else []
    run_until_told(lambda: writer.start(*path))


def run_until_told(start: Callable[[], StreamingQuery]) -> None:
    """Start a query, stop it on SIGTERM, and exit with 0, or with 3 if it failed."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    parent = os.getppid()  # before the start, which takes long enough for the parent to die
    query = start()
    while query.is_active and not stopped.wait(0.1):
        if os.getppid() != parent:
            os._exit(4)  # the test process itself was killed
    query.stop()
    error = query.exception()
    if error is not None:
        sys.stderr.write(f"{error}\n")
    sys.stderr.flush()
    os._exit(0 if error is None else 3)  # the JVM ends when its standard input closes


if __name__ == "__main__":
    main(*sys.argv[1:])
