"""Resumes damaged and mended checkpoints in one warm session of some Spark, several at a time.

    python -m tests.spark.damage_child SETTINGS

SETTINGS is JSON: where to work, and settings of the session. Each line of the input is a list of
jobs; when all of them have left their answers in their files, a line is printed.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from tests.golden import account, inputs
from tests.golden.catalogue import CASES
from tests.golden.child import session_for, start_spark, take_rest
from tests.golden.place import Place
from tests.golden.shape import Case
from tests.golden.typed import rows_of

AT_ONCE = 3
SECONDS = 900
AS_JSON = (
    "to_json(struct(*), map('timestampFormat', 'yyyy-MM-dd\\'T\\'HH:mm:ss.SSSSSS\\'Z\\'', "
    "'ignoreNullFields', 'false'))"
)
"""A row as `rows_of` tells it, for values of the types that these queries have."""


def resume(spark: SparkSession, job: dict[str, Any]) -> list[dict[str, Any]]:
    """Let a query read the rest of its input; what is in its output then."""
    case, place = CASES[job["case"]], Place(Path(job["base"]))
    # The log of a file sink is compacted after some batches. To others all is one, and quicker.
    inputs.per_batch.set("1" if job["sink"] == "files" else "100")
    session = session_for(spark, case)
    take_rest(place)
    place.output.mkdir(parents=True, exist_ok=True)
    query = start(session, case, place, job)
    if not query.awaitTermination(SECONDS):
        query.stop()
        raise TimeoutError(f"no end after {SECONDS} s")
    if job["sink"] == "delta":
        return rows_of(session.read.format("delta").load(job["table"]))
    return account.output(session, case, place)


def start(session: SparkSession, case: Case, place: Place, job: dict[str, Any]) -> Any:
    frame = case.query(session, place)
    if job["sink"] == "kafka":
        frame = frame.selectExpr(f"'{job['seed']}' AS key", f"{AS_JSON} AS value")
    writer = frame.writeStream.outputMode(case.mode).options(**case.options)
    writer = writer.option("checkpointLocation", str(place.checkpoint)).trigger(**case.trigger)
    if case.sink_name is not None:
        writer._jwrite.name(case.sink_name)
    match job["sink"]:
        case "rows":
            return writer.foreachBatch(kept_rows(place)).start()
        case "files":
            return writer.format("parquet").start(str(place.output))
        case "delta":
            return writer.format("delta").start(job["table"])
        case "kafka":
            writer = writer.format("kafka").option("kafka.bootstrap.servers", job["servers"])
            return writer.option("topic", job["topic"]).start()
    raise ValueError(f"unknown sink {job['sink']!r}")


def kept_rows(place: Place) -> Any:
    def keep(batch: DataFrame, batch_id: int) -> None:
        account.keep_rows(batch, place.output / f"{batch_id:06}.jsonl")

    return keep


def answer_all(spark: SparkSession, jobs: list[dict[str, Any]]) -> None:
    for job in jobs:
        try:
            told: dict[str, Any] = {"output": resume(spark, job)}
        except Exception:  # noqa: BLE001 - one bad case must not cost the others
            told = {"failure": traceback.format_exc()}
        Path(job["answer"]).write_text(json.dumps(told, ensure_ascii=False), encoding="utf-8")


def main(scratch: Path, settings: dict[str, str]) -> None:
    scratch.mkdir(parents=True, exist_ok=True)
    os.chdir(scratch)
    spark = start_spark(scratch, settings)
    with ThreadPoolExecutor(AT_ONCE) as workers:
        for line in sys.stdin:
            groups: dict[str, list[dict[str, Any]]] = {}
            for job in json.loads(line):  # cases of one query have its id: Spark runs one at a time
                groups.setdefault(job["case"], []).append(job)
            list(workers.map(lambda group: answer_all(spark, group), groups.values()))
            sys.stdout.write("\nresumed\n")
            sys.stdout.flush()
    spark.stop()


if __name__ == "__main__":
    wanted = json.loads(sys.argv[1])
    main(Path(wanted["scratch"]), wanted["settings"])
