"""A driver program that tests kill: running sums of the rate source, by key, into Iceberg tables.

    python -m tests.fault.iceberg_sums MASTER CHECKPOINT OUT [OPTION=VALUE...]

OUT is the directory of the catalog and its tables. With the option mergeKeys, a key's newest sum
replaces the one before. On SIGTERM it stops its query gracefully and exits with 0. If the query
failed, it logs the reason and exits with 3.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.fault.keyed_sums import ROWS_PER_SECOND, run_until_told
from tests.fault.sums import ENDURING, KEYS, OUTPUT, RunningSum
from tests.iceberg_tables import Warehouse
from tests.spark.sessions import session

from epochal import read_stream


def main(master: str, checkpoint: str, out: str, *options: str) -> None:
    spark = session(master, spark__deploy__maxExecutorRetries="-1", spark__locality__wait="0s")
    stream = (
        read_stream(spark).format("rate").options(rowsPerSecond=ROWS_PER_SECOND, numPartitions=3)
    )
    keyed = stream.load().with_column("k", f"value % {KEYS}")
    sums = keyed.transform_with_state(RunningSum(), key=["k"], output=OUTPUT)
    given = dict(option.split("=", 1) for option in options)
    table = Warehouse(Path(out)).options("db.sums")
    usual = {**ENDURING, "checkpointLocation": checkpoint, **table}
    writer = sums.write_stream.format("iceberg").options(**{**usual, **given})
    if "mergeKeys" in given:
        writer = writer.output_mode("update")
    run_until_told(lambda: writer.trigger(epoch="250 milliseconds").start())


if __name__ == "__main__":
    main(*sys.argv[1:])
