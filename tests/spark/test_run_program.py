"""`epochal run`: a program of queries is watched until they end, and ended by a signal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.fault.torment import lives
from tests.spark.continuous import parents_of_all
from tests.waiting import eventually

from epochal.checkpoint import Checkpoint

SECONDS = 120

COUNTS = """
import sys

assert sys.argv[1:] == ["--home", HOME]
rows = epochal.read_stream(spark).format("rate").option("rowsPerSecond", 500).load()
counts = rows.select("value % 3 AS k").group_by("k").count()
writer = counts.write_stream.format("noop").output_mode("update")
writer = writer.option("parallelism", 1)  # the third slot is for Spark's own query
query = writer.option("checkpointLocation", HOME + "/checkpoint").start()
"""
WAITS = "query.await_termination()\n"
SPARKS = """
theirs = spark.readStream.format("rate").load().writeStream.format("noop")
theirs.option("checkpointLocation", HOME + "/theirs").start()
"""
FAILS = """
def broken(batches):
    for batch in batches:
        raise ValueError("no such luck")
        yield batch

rows = epochal.read_stream(spark).format("rate").option("rowsPerSecond", 500).load()
writer = rows.map_in_arrow(broken, "value bigint").write_stream.format("noop")
writer.option("checkpointLocation", HOME + "/checkpoint").option("maxRestarts", 1).start()
"""


def started(home: Path, program: str) -> subprocess.Popen[str]:
    file = home / "program.py"
    file.write_text(program.replace("HOME", repr(str(home))))
    command = [sys.executable, "-m", "epochal.cli.main", "run", "--master", "local[3]"]
    command += ["--conf", "spark.ui.enabled=false", str(file), "--home", str(home)]
    env = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    return subprocess.Popen(
        command, env=env, cwd=home, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def wait_for_commits(process: subprocess.Popen[str], *logs: Path) -> None:
    def are_there() -> bool:
        assert process.poll() is None, process.communicate()
        return all(log.is_dir() and len(list(log.iterdir())) > 2 for log in logs)

    eventually(are_there, "commits", pause=0.05)


@pytest.mark.long
@pytest.mark.parametrize(
    ("program", "number"),
    [
        pytest.param(COUNTS + SPARKS, signal.SIGTERM, id="a program that leaves its queries"),
        pytest.param(COUNTS + WAITS, signal.SIGINT, id="a program that waits"),
    ],
)
def test_a_signal_ends_queries_where_an_epoch_ends(
    program: str, number: signal.Signals, tmp_path: Path
) -> None:
    process = started(tmp_path, program)
    theirs = [tmp_path / "theirs" / "commits"] if SPARKS in program else []
    try:
        wait_for_commits(process, tmp_path / "checkpoint" / "commits", *theirs)
        process.send_signal(number)
        said, complained = process.communicate(timeout=SECONDS)
    finally:
        process.kill()
        process.communicate()
    assert (process.returncode, said) == (0, "All queries have ended.\n"), complained
    found = Checkpoint(str(tmp_path / "checkpoint"))
    assert found.offsets.batch_ids() == found.commits.batch_ids()


def test_ctrl_c_while_spark_starts_leaves_no_jvm_behind(tmp_path: Path) -> None:
    process = started(tmp_path, COUNTS)

    def children() -> list[int]:
        return [pid for pid, parent in parents_of_all().items() if parent == process.pid]

    try:
        jvms = eventually(children, "a JVM")
        process.send_signal(signal.SIGINT)
        said, complained = process.communicate(timeout=SECONDS)
    finally:
        process.kill()
        process.communicate()
    told = "epochal: Interrupted while Spark was starting. The program was not run."
    assert (process.returncode, said, complained.splitlines()[-1]) == (130, "", told)
    assert not (tmp_path / "checkpoint").exists()
    eventually(lambda: not any(map(lives, jvms)), "the end of the JVM")


def test_a_query_that_fails_ends_the_program_with_its_cause(tmp_path: Path) -> None:
    process = started(tmp_path, FAILS)
    said, complained = process.communicate(timeout=SECONDS)
    assert (process.returncode, said) == (1, "")
    assert "no such luck" in complained
    assert "[STREAM_FAILED] Query" in complained
