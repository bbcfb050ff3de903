"""Runs inside one Spark release: makes golden cases, resumes them, or reads their state.

    python -m tests.golden.child SCRATCH

Each line of the input is a request in JSON, from `make.py` or from tests; the answers go to the
files that the request names. One session serves all requests, since the JVM is what costs.
"""

import json
import os
import shutil
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from tests.golden import account
from tests.golden.catalogue import CASES, CHANGED
from tests.golden.library import pack
from tests.golden.place import Place
from tests.golden.shape import Case

STATE_STORE = "org.apache.spark.sql.execution.streaming.state.StateStore$"
ANSWERED = "answered"
"""The line that follows the answers to a request."""


class Interruption(Exception):
    """Raised inside a batch to leave it uncommitted."""


def start_spark(scratch: Path, conf: dict[str, str]) -> SparkSession:
    settings = {
        "spark.master": "local[2]",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # Short runs: the optimising compiler would cost more than it saves.
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.local.dir": str(scratch),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.streaming.asyncLogPurge.enabled": "false",
        "spark.sql.streaming.stateStore.maintenanceInterval": "300ms",
        "spark.sql.streaming.numRecentProgressUpdates": "1000",
        **conf,
    }
    builder = SparkSession.builder.appName("golden")
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    # Without this the `statestore` source of some releases finds no coordinator to talk to.
    assert not spark.streams.active
    return spark


def session_for(
    spark: SparkSession, case: Case, conf: Mapping[str, str] | None = None
) -> SparkSession:
    session = spark.newSession()
    for key, value in {**case.session_conf(), **(conf or {})}.items():
        session.conf.set(key, value)
    return session


def run(spark: SparkSession, case: Case, place: Place, *, failing: bool = False) -> Any:
    """Start the case's query, let it read all there is, and return it when it has ended."""
    place.output.mkdir(parents=True, exist_ok=True)
    writer = case.query(spark, place).writeStream.outputMode(case.mode)
    writer = writer.option("checkpointLocation", str(place.checkpoint)).options(**case.options)
    if case.sink_name is not None:
        writer._jwrite.name(case.sink_name)
    match case.sink:
        case "rows":
            writer = writer.foreachBatch(_keep_rows(case, place, failing=failing))
        case "parquet":
            writer = writer.format("parquet").option("path", str(place.output))
        case "noop":
            writer = writer.format("noop")
    query = writer.trigger(**case.trigger).start()
    if case.run_seconds is not None:
        time.sleep(case.run_seconds)  # the clock drives such a query
        query.stop()
    try:
        _await(query, failing=failing)
    finally:
        _end_state_stores(spark)
    return query


def _end_state_stores(spark: SparkSession) -> None:
    """Otherwise maintenance of the ended query would go on writing while its files are copied, and
    the next query on a mended checkpoint would find state in memory.
    """
    state_store = getattr(getattr(spark._jvm, STATE_STORE), "MODULE$")
    # Not stop(): from 4.0 on it can wait five minutes for a thread that waits for its lock.
    state_store.unloadAll()
    time.sleep(1)  # maintenance that runs now may finish


def _await(query: Any, *, failing: bool) -> None:
    try:
        query.awaitTermination()
    except Exception as error:
        if not (failing and "Interruption" in str(error)):
            raise
    else:
        if failing:
            raise AssertionError(f"query {query.id} was to be interrupted and was not")


def _keep_rows(case: Case, place: Place, *, failing: bool) -> Callable[[DataFrame, int], None]:
    def keep(batch: DataFrame, batch_id: int) -> None:
        interrupted = failing and batch_id == case.fails_in
        if interrupted and case.fails == "before the rows are computed":
            raise Interruption(f"batch {batch_id}")
        if interrupted:
            batch.count()
            raise Interruption(f"batch {batch_id}")
        account.keep_rows(batch, place.output / f"{batch_id:06}.jsonl")

    return keep


def make(
    spark: SparkSession, case: Case, base: Path, kept: Path, *, readable: bool
) -> dict[str, Any]:
    """Run a case to its end; leave at `kept` what it looked like before the last step."""
    place = Place(base)
    shutil.rmtree(base, ignore_errors=True)
    shutil.rmtree(kept, ignore_errors=True)
    base.mkdir(parents=True)
    session = session_for(spark, case)
    reports: list[dict[str, Any]] = []
    for step in range(case.last_step):
        _reveal(case, place, step)
        failing = case.fails is not None and step == case.last_step - 1
        query = run(session, case, place, failing=failing)
        reports += account.progress(query)
    for file in case.files:
        if file.step == case.last_step:
            file.write(place.rest)
    facts = {
        "release": spark.version,
        "case": case.name,
        "about": case.about,
        "mode": case.mode,
        "sink": case.sink,
        "resumable": case.resumable,
        "query_id": str(query.id),
        "base": str(base),
        "conf": case.session_conf(),
        "progress": reports,
        "offsets": _batches(place.checkpoint / "offsets"),
        "commits": _batches(place.checkpoint / "commits"),
        "output": account.output(session, case, place),
    }
    shutil.copytree(base, kept)
    if readable:
        facts.update(describe(session, case, place))
    take_rest(place)
    last = run(session, case, place)
    facts["undisturbed"] = {
        "output": account.output(session, case, place),
        "progress": account.progress(last),
    }
    return facts


def describe(session: SparkSession, case: Case, place: Place) -> dict[str, Any]:
    """The state as this release's own readers see it."""
    found: dict[str, Any] = {"reader": session.version, "state_metadata": []}
    if any(place.checkpoint.glob("state/*/_metadata")):
        found["state_metadata"] = account.state_metadata(session, place.checkpoint)
    batches = _batches(place.checkpoint / "commits")
    return {**found, **account.state(session, case, place.checkpoint, batches)}


def _reveal(case: Case, place: Place, step: int) -> None:
    for file in case.files:
        if file.step == step:
            file.write(place.input)


def take_rest(place: Place) -> None:
    """Move the input of the last step to where the query looks for it."""
    for path in sorted(place.rest.rglob("*.json")):
        target = place.input / path.relative_to(place.rest)
        target.parent.mkdir(parents=True, exist_ok=True)
        path.rename(target)


def _batches(log: Path) -> list[int]:
    names = os.listdir(log) if log.is_dir() else []
    return sorted(int(name) for name in names if name.isdigit())


def resume(spark: SparkSession, case: Case, base: Path, conf: Mapping[str, str]) -> dict[str, Any]:
    """Let a kept checkpoint's query read the rest of its input."""
    place = Place(base)
    session = session_for(spark, case, conf)
    take_rest(place)
    query = run(session, case, place)
    return {
        "query_id": str(query.id),
        "progress": account.progress(query),
        "output": account.output(session, case, place),
    }


def answer(spark: SparkSession, request: dict[str, Any], job: dict[str, Any]) -> dict[str, Any]:
    case = (CASES | CHANGED)[job["case"]]
    base = Path(job["base"])
    match request["action"]:
        case "make":
            kept, readable = Path(job["kept"]), job["reader"] == spark.version
            facts = make(spark, case, base, kept, readable=readable)
            if readable:
                pack(kept, facts, Path(job["archive"]))
            return facts
        case "describe":
            return describe(session_for(spark, case), case, Place(base))
        case "resume":
            return resume(spark, case, base, request["conf"])
    raise ValueError(f"unknown action {request['action']!r}")


def main(scratch: Path) -> None:
    scratch.mkdir(parents=True, exist_ok=True)
    os.chdir(scratch)
    spark = start_spark(scratch, {})
    for line in sys.stdin:
        request = json.loads(line)
        for job in request["jobs"]:
            began = time.monotonic()
            try:
                result = answer(spark, request, job)
            except Exception:  # noqa: BLE001 - one bad case must not cost the others
                result = {"failure": traceback.format_exc()}
            Path(job["answer"]).write_text(json.dumps(result, ensure_ascii=False), encoding="utf-8")
            verdict = "FAILED" if "failure" in result else "done"
            told = f"{spark.version} {job['case']}: {verdict} in {time.monotonic() - began:.1f} s"
            print(told, flush=True)
        print(ANSWERED, flush=True)
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
