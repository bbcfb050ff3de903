"""Nexmark on Flink, by PyFlink in an environment of its own, which has no other packages.

Flink's own cluster within a process, two slots, state on the heap, a checkpoint every second. For
throughput it counts up numbers itself, two ranges that are interleaved, and computes events from
them; results go to a sink that drops them. For latency a socket gives numbers when they are due,
and results are printed with the time of each. Python functions run within the JVM ("thread" mode),
the faster of its two modes.
"""

from __future__ import annotations

import json
import os
import re
import socket
import sys
import sysconfig
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.harness import cpu_seconds
from benchmarks.nexmark.functions import FUNCTIONS
from benchmarks.nexmark.serving import RATE, Delays, Request, latency, serve, throughput
from benchmarks.nexmark.texts import (
    DELAY_SECONDS,
    EVENTS_PER_MS,
    flink_texts,
    generator,
    python_texts,
    timed,
)
from pyflink.common import Configuration, Types, WatermarkStrategy
from pyflink.datastream import DataStream, StreamExecutionEnvironment
from pyflink.datastream.connectors.number_seq import NumberSequenceSource
from pyflink.table import Schema, StreamTableEnvironment
from pyflink.table.udf import udf

BEGIN_MS = 1_767_254_390_000
NUMBERS = 4_000_000_000
HALF = NUMBERS // 2
PARALLELISM = 2
PRINTED = re.compile(r"\+[IU]\[(\S+), (\S+)\]")
SOURCE_ROWS = re.compile(r"Source__[^.]*\.numRecordsOut")


def environment(port: int, base: str) -> tuple[Any, Any]:
    conf = Configuration()
    for key, value in {
        "rest.port": str(port),
        "metrics.fetcher.update-interval": "100",
        "python.execution-mode": "thread",
        "python.executable": sys.executable,
        "execution.checkpointing.interval": "1 s",
        "execution.checkpointing.dir": f"file://{base}/checkpoints",
        "restart-strategy.type": "none",
        "table.local-time-zone": "UTC",
    }.items():
        conf.set_string(key, value)
    env = StreamExecutionEnvironment.get_execution_environment(conf)
    env.set_parallelism(PARALLELISM)
    tables = StreamTableEnvironment.create(env)
    for name, (function, kind) in FUNCTIONS.items():
        tables.create_temporary_system_function(name, udf(function, result_type=kind))
    return env, tables


def watched(columns: Any, value: str, begin_ms: int) -> Any:
    """A schema with the number and the time of an event, and the watermark."""
    columns = columns.column_by_expression("value", value)
    stamp = f"TO_TIMESTAMP_LTZ({begin_ms} + ({value}) / {EVENTS_PER_MS}, 3)"
    columns = columns.column_by_expression("ts", stamp)
    return columns.watermark("ts", f"ts - INTERVAL '{DELAY_SECONDS}' SECOND").build()


def flat_out_numbers(env: Any, tables: Any) -> Any:
    source = NumberSequenceSource(0, NUMBERS - 1)
    stream = env.from_source(source, WatermarkStrategy.no_watermarks(), "numbers", Types.LONG())
    # The source gives each of two tasks one half; both halves are to advance in time together.
    value = f"CASE WHEN f0 < {HALF} THEN 2 * f0 ELSE 2 * (f0 - {HALF}) + 1 END"
    columns = Schema.new_builder().column("f0", "BIGINT")
    return tables.from_data_stream(stream, watched(columns, value, BEGIN_MS))


def numbers_when_due(env: Any, tables: Any, port: int, begin_ms: int) -> Any:
    java = env._j_stream_execution_environment
    stream = DataStream(java.socketTextStream("127.0.0.1", port, "\n"))
    columns = Schema.new_builder().column("f0", "STRING")
    return tables.from_data_stream(stream, watched(columns, "CAST(f0 AS BIGINT)", begin_ms))


def feed(server: socket.socket, begin_ms: int, stop: threading.Event) -> None:
    """Send the number of each event when it is due, until the reader goes."""
    reader, _ = server.accept()
    sent = _due_by(begin_ms)  # what was due before the job ran is not part of the latency
    with reader:
        while not stop.wait(0.001):
            due = _due_by(begin_ms)
            if due > sent:
                try:
                    reader.sendall(b"".join(b"%d\n" % number for number in range(sent, due)))
                except OSError:
                    return
                sent = due


def _due_by(begin_ms: int) -> int:
    return max(0, int((time.time() * 1000 - begin_ms) * RATE / 1000))


def register_views(tables: Any, numbers: Any) -> None:
    tables.create_temporary_view("numbers", numbers)
    events = re.sub(r"--.*", "", generator("numbers"))
    events = re.sub(r"\bvalue\b", "`value`", events)
    tables.execute_sql(f"CREATE TEMPORARY VIEW events AS {events}")
    for kind in ("bid", "auction", "person"):
        tables.execute_sql(
            f"CREATE TEMPORARY VIEW {kind} AS SELECT *, CAST(ts AS TIMESTAMP(3)) AS at_time, "
            f"PROCTIME() AS processed FROM events WHERE kind = '{kind}'"
        )
    rows = [(key, f"side-{key}") for key in range(0, 10_000, 3)]
    tables.create_temporary_view("side_input", tables.from_elements(rows, ["key", "value"]))


def started(tables: Any, request: Request) -> Any:
    """Start the query; return its job."""
    texts = python_texts() if request.python else flink_texts()
    text = texts[request.number]
    if request.kind == "throughput":
        answer, sink = tables.sql_query(text), "blackhole"
    else:
        # The whole result is computed: what nobody reads, the planner would leave out.
        whole = tables.sql_query(timed(text))
        names = ", ".join(
            f"CAST(`{each}` AS STRING)" for each in whole.get_schema().get_field_names()
        )
        tables.create_temporary_view("answers", whole)
        answer = tables.sql_query(
            f"SELECT due, CURRENT_ROW_TIMESTAMP() AS seen FROM answers "
            f"WHERE CHAR_LENGTH(CONCAT_WS('', {names})) >= 0"
        )
        sink = "print"
    columns = ", ".join(
        f"`{name}` {kind}"
        for name, kind in zip(
            answer.get_schema().get_field_names(),
            (_plain(each) for each in answer.get_schema().get_field_data_types()),
            strict=True,
        )
    )
    tables.execute_sql(f"CREATE TEMPORARY TABLE answered ({columns}) WITH ('connector' = '{sink}')")
    return answer.execute_insert("answered").get_job_client()


def _plain(kind: Any) -> str:
    """The name of a type in SQL."""
    from pyflink.table.types import _to_java_data_type

    return str(_to_java_data_type(kind).getLogicalType().asSerializableString())


def rows_read(port: int, job: str) -> int:
    """How many rows the sources of a job have given."""
    base = f"http://127.0.0.1:{port}/jobs/{job}"
    found = 0
    for vertex in _get(base).get("vertices", ()):
        metrics = f"{base}/vertices/{vertex['id']}/subtasks/metrics"
        names = [each["id"] for each in _get(metrics) if SOURCE_ROWS.fullmatch(each["id"])]
        if any("numbers" in name for name in names):
            chosen = next(name for name in names if "numbers" in name)
            found = max(found, int(float(_get(f"{metrics}?get={chosen}&agg=sum")[0]["sum"])))
    return found


def _get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=5) as answer:
        return json.load(answer)


def printed(port: int, job: str, output: Path) -> Delays:
    """(due, delay) of what has been printed."""
    _get(f"http://127.0.0.1:{port}/jobs/{job}")  # fails if the job has
    found = []
    for due, seen in PRINTED.findall(output.read_text(errors="replace")):
        at = _seconds(due)
        found.append((at, _seconds(seen) - at))
    return found


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def measure(request: Request, output: Path) -> dict[str, Any]:
    port = free_port()
    stop = threading.Event()
    with tempfile.TemporaryDirectory() as base, socket.create_server(("127.0.0.1", 0)) as server:
        env, tables = environment(port, base)
        if request.kind == "throughput":
            register_views(tables, flat_out_numbers(env, tables))
        else:
            begin_ms = int(time.time() * 1000)
            threading.Thread(target=feed, args=(server, begin_ms, stop), daemon=True).start()
            source = server.getsockname()[1]
            register_views(tables, numbers_when_due(env, tables, source, begin_ms))
        job = started(tables, request)
        name = str(job.get_job_id())
        try:
            if request.kind == "throughput":
                done: Callable[[], int] = partial(rows_read, port, name)
                return throughput(request, done, partial(cpu_seconds, os.getpid()))
            return latency(request, partial(printed, port, name, output))
        except OSError:  # the cluster ends with its job
            job.get_job_execution_result().result()  # raises what ended it
            raise
        finally:
            stop.set()
            with suppress(Exception):  # if the job has ended
                job.cancel().result()


if __name__ == "__main__":
    # The interpreter within the JVM does not look into this environment by itself.
    paths = [os.environ.get("PYTHONPATH", ""), sysconfig.get_paths()["purelib"]]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    serve(measure)
