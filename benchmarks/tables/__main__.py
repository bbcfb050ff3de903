"""Tables: from when a row was due until another process sees it, and commits on a long history.

    python -m benchmarks.tables [--quick]

Engines take turns, each with a new table. Spark's micro-batches write to a Delta table in the same
run. The witness is a process that only reads. `--quick` is for trying it out.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.due_rows import SECOND, read_notes
from benchmarks.harness import (
    REPOSITORY,
    Report,
    arguments,
    child_environment,
    installed,
    percentile,
)
from benchmarks.tables.commits import delta_commits, iceberg_commits
from tests.rigs.postgres import running_postgres

SPARK = ("pyspark==4.2.1", "pandas<3", "pyarrow", "msgspec", "numpy")
RATES = (1_000, 50_000)
ENGINES = ("epochal-delta", "spark-delta", "epochal-iceberg", "epochal-postgres")
LEAD_SECONDS, WARM_UP_SECONDS, MEASURED_SECONDS = 25, 10, 40
"""Rows fall due when every engine is up."""
LATE_SECONDS = 5
"""Rows of the last seconds may not be visible yet; they are never counted."""
END_SECONDS = 60


@contextmanager
def running(command: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A child process, which is told to end by the end of its input."""
    environment = {**child_environment(), "PYSPARK_PYTHON": command[0]}
    environment["PYTHONPATH"] = f"{REPOSITORY}:{REPOSITORY / 'src'}"
    with log.open("wb") as output:
        child = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            cwd=REPOSITORY,
            env=environment,
        )
        try:
            yield child
        finally:
            assert child.stdin is not None
            child.stdin.close()
            try:
                child.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


def visible(engine: str, rate: int, measured: float) -> dict[str, Any]:
    """Run one engine; how long its rows took until the witness saw them."""
    kind = engine.partition("-")[2]
    with ExitStack() as stack:
        base = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        place, notes = str(base / "table"), base / "notes"
        notes.mkdir()
        (base / "table").mkdir()
        if kind == "postgres":
            server = stack.enter_context(running_postgres())
            server.psql(
                "CREATE TABLE bench (n bigserial PRIMARY KEY, key bigint, value bigint, due bigint)"
            )
            place = server.url
        start_ns = time.time_ns() + LEAD_SECONDS * SECOND
        python = str(installed(*SPARK)) if engine == "spark-delta" else sys.executable
        words = [engine, place, str(base / "checkpoint"), str(rate), str(start_ns)]
        writing = [python, "-m", "benchmarks.tables.writing", *words]
        watching = [sys.executable, "-m", "benchmarks.tables.watching", kind, place, str(notes)]
        watch = stack.enter_context(running(watching, base / "watching.log"))
        write = stack.enter_context(running(writing, base / "writing.log"))
        time.sleep(LEAD_SECONDS + WARM_UP_SECONDS + measured + LATE_SECONDS)
        if write.poll() is not None:
            return {"failed": (base / "writing.log").read_text(errors="replace")[-600:]}
        watch.kill()
        found = read_notes(str(notes))
        begin = start_ns + WARM_UP_SECONDS * SECOND
        kept = found[(found[:, 0] >= begin) & (found[:, 0] < begin + measured * SECOND)]
        if not len(kept):
            return {"failed": f"no row was visible; {_last_error(notes)}"}
        delays = (kept[:, 1] / 1e6).tolist()
        values: dict[str, Any] = {"rows": len(delays), "expected_rows": int(rate * measured)}
        values |= {"p50_ms": percentile(delays, 50), "p99_ms": percentile(delays, 99)}
        return values | ({"files": _data_files(place)} if kind != "postgres" else {})


def _last_error(notes: Path) -> str:
    noted = notes / "last-error"
    return noted.read_text() if noted.exists() else "the witness met no error"


def _data_files(place: str) -> int:
    return sum(1 for _ in Path(place).rglob("*.parquet"))


def main() -> None:
    parser = arguments("tables")
    parser.add_argument("--engines", help=f"some of {','.join(ENGINES)}")
    parser.add_argument("--rates", help="rows per second, separated by commas")
    parser.add_argument("--only", choices=("visible", "commits"))
    asked = parser.parse_args()
    engines = (asked.engines or ",".join(ENGINES)).split(",")
    if unknown := set(engines) - set(ENGINES):
        raise SystemExit(f"There is no {', '.join(sorted(unknown))}: {', '.join(ENGINES)}.")
    report = Report("tables", busy=asked.busy, quick=asked.quick)
    if asked.only != "commits":
        for rate in map(int, asked.rates.split(",")) if asked.rates else RATES:
            for engine in engines:
                found = visible(engine, rate, 10 if asked.quick else MEASURED_SECONDS)
                report.row(f"visible at {rate} rows/s: {engine}", **found)
    if asked.only != "visible":
        for name, commits in (("delta", delta_commits), ("iceberg", iceberg_commits)):
            for found in commits(quick=asked.quick):
                report.row(f"commit to {name} at {found.pop('versions')} versions", **found)


if __name__ == "__main__":
    main()
