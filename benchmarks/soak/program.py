"""The query of the soak, as a program that is killed, stopped and started again.

    python -m benchmarks.soak.program MASTER CHECKPOINT TABLE servers=… topic=… release=N [OPTION=…]

Before a release continues from a checkpoint it asks `epochal.check` whether it may. On SIGTERM it
stops gracefully and exits with 0. It exits with 3 if the query failed.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from benchmarks.soak.releases import INPUT, MORE, OUTPUT, WITH_HANDLED, Totals, numbers, parallelism
from tests.fault.keyed_sums import run_until_told
from tests.fault.sums import ENDURING
from tests.spark.sessions import session

import epochal

HEAP = "640m"
"""Little, so that a JVM that leaks ends within the run."""


def writer_of(spark: Any, given: dict[str, str], checkpoint: str) -> Any:
    servers, topic, release = given.pop("servers"), given.pop("topic"), int(given.pop("release"))
    stream = (
        epochal.read_stream(spark)
        .format("kafka")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .load()
    )
    output = MORE if release >= WITH_HANDLED else OUTPUT
    totals = stream.map_in_arrow(numbers, INPUT).transform_with_state(
        Totals(release), key=["k"], output=output
    )
    usual = {
        **ENDURING,
        "parallelism": str(parallelism(release)),
        "checkpointLocation": checkpoint,
        "discoverInterval": "2 seconds",
        "publishInterval": "10 seconds",
        "mergeSchema": "true",
    }
    writer = totals.write_stream.format("delta").options(**{**usual, **given})
    return writer.trigger(epoch="250 milliseconds")


def main(master: str, checkpoint: str, table: str, *options: str) -> None:
    given = dict(option.split("=", 1) for option in options)
    spark = session(
        master,
        spark__deploy__maxExecutorRetries="-1",
        spark__locality__wait="0s",
        spark__driver__memory=HEAP,
        spark__executor__memory=HEAP,
    )
    writer = writer_of(spark, given, checkpoint)
    if Path(checkpoint, "offsets").is_dir():
        report = epochal.check(writer, checkpoint)
        for difference in report.differences:
            sys.stderr.write(f"epochal check: {difference}\n")
    run_until_told(lambda: writer.start(table))


if __name__ == "__main__":
    main(*sys.argv[1:])
