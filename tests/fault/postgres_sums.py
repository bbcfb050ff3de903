"""A driver program that tests kill: running sums of the rate source, by key, into PostgreSQL.

    python -m tests.fault.postgres_sums MASTER CHECKPOINT OUT url=… dbtable=… [OPTION=VALUE]

OUT is not used. With the option mergeKeys the table has the newest row of each key, otherwise all
rows. On SIGTERM the program stops its query gracefully and exits with 0. It exits with 3 if the
query failed.
"""

from __future__ import annotations

import sys

from tests.fault.keyed_sums import ROWS_PER_SECOND, run_until_told
from tests.fault.sums import ENDURING, KEYS, OUTPUT, RunningSum
from tests.spark.sessions import session

from epochal import read_stream


def main(master: str, checkpoint: str, out: str, *options: str) -> None:
    del out
    spark = session(master, spark__deploy__maxExecutorRetries="-1", spark__locality__wait="0s")
    stream = (
        read_stream(spark).format("rate").options(rowsPerSecond=ROWS_PER_SECOND, numPartitions=3)
    )
    keyed = stream.load().with_column("k", f"value % {KEYS}")
    sums = keyed.transform_with_state(RunningSum(), key=["k"], output=OUTPUT)
    given = dict(option.split("=", 1) for option in options)
    usual = {**ENDURING, "checkpointLocation": checkpoint, "lockTimeout": "1 second"}
    mode = "update" if "mergeKeys" in given else "append"
    writer = sums.write_stream.format("postgres").output_mode(mode).options(**{**usual, **given})
    run_until_told(lambda: writer.trigger(epoch="100 milliseconds").start())


if __name__ == "__main__":
    main(*sys.argv[1:])
