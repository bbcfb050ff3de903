"""`epochal check`: a program is run up to its queries, and its changes are judged."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SECONDS = 180

OURS = """
import sys
from pyspark.sql import functions as F

home, key = sys.argv[1:]
rows = spark.readStream.schema("k string, j string, v int").json(home + "/in")
epochal.write_stream(rows.select("v")).format("noop").start()
query = (
    epochal.write_stream(rows.groupBy(key).agg(F.sum("v")))
    .outputMode("update").foreachBatch(lambda rows, epoch: None)
    .queryName("sums").trigger(availableNow=True)
    .start(checkpointLocation=home + "/ours")
)
epochal.streams(spark).await_any_termination()
query.stop()
spark.stop()
sys.exit(0)
"""
"""Starts two queries of our engine, waits as a service would, and ends the session itself."""

PROGRAM = """
import sys
from pyspark.sql import SparkSession, functions as F

home, key = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()
rows = spark.readStream.schema("k string, j string, v int").json(home + "/in")
query = (
    rows.groupBy(key).agg(F.sum("v"))
    .writeStream.outputMode("update").format("noop")
    .option("checkpointLocation", home + "/checkpoint").trigger(availableNow=True).start()
)
query.awaitTermination()
"""


def epochal(home: Path, command: str, *words: str) -> subprocess.CompletedProcess[str]:
    (home / "program.py").write_text(PROGRAM)
    env = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    return subprocess.run(
        [sys.executable, "-m", "epochal.cli.main", command, *words],
        env=env,
        cwd=home,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("program")
    (made / "in").mkdir()
    (made / "in" / "0.json").write_text('{"k": "a", "j": "b", "v": 1}')
    conf = ("--conf", "spark.ui.enabled=false", "--conf", "spark.sql.shuffle.partitions=2")
    ran = epochal(made, "run", "--master", "local[2]", *conf, "program.py", str(made), "k")
    assert ran.returncode == 0, ran.stderr
    return made


def check(home: Path, key: str, *words: str) -> subprocess.CompletedProcess[str]:
    at = ("--checkpoint", str(home / "checkpoint"))
    return epochal(home, "check", "program.py", *at, *words, "--", str(home), key)


def test_a_setting_of_the_session_is_compared_and_its_command_printed(home: Path) -> None:
    conf = ("--conf", "spark.sql.shuffle.partitions=7")
    done = check(home, "k", *conf)
    assert done.returncode == 0, done.stderr
    command = f"epochal state repartition {home}/checkpoint --partitions 7 --sink OUTPUT --execute"
    assert f"To change that, run: {command}" in done.stdout


def test_a_program_of_our_engine_is_checked_and_may_end_its_session(home: Path) -> None:
    (home / "ours.py").write_text(OURS)
    (home / "ours").mkdir()
    at = ("--checkpoint", str(home / "ours"), "--json")
    done = epochal(home, "check", "ours.py", *at, "--", str(home), "k")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert (found["engine"], found["starts"], found["differences"]) == ("Epochal", True, [])
    assert list((home / "ours").iterdir()) == []

    done = epochal(home, "check", "ours.py", *at, "--query", "other", "--", str(home), "k")
    assert done.returncode == 3
    assert "--query NAME" in done.stderr


def test_a_program_that_waits_for_rows_of_its_query_is_checked(home: Path) -> None:
    (home / "polling.py").write_text(
        PROGRAM.replace(
            "query.awaitTermination()",
            "while query.lastProgress is None:\n    query.awaitTermination(1)\nraise OSError",
        )
    )
    at = ("--checkpoint", str(home / "checkpoint"))
    done = epochal(home, "check", "polling.py", *at, "--", str(home), "k")
    assert (done.returncode, done.stderr.count("OSError")) == (0, 0), done.stderr


def test_a_checkpoint_that_does_not_exist_is_not_safe(home: Path) -> None:
    done = epochal(home, "check", "program.py", "--checkpoint", "typo", "--", str(home), "k")
    assert done.returncode == 3
    assert "There is no checkpoint" in done.stderr


PIPELINE = """
from pyspark.sql import functions as F

def pipeline(rows):
    return rows.groupBy("k").agg({aggregates})
"""
USING_IT = """
from pipeline import pipeline

rows = spark.readStream.schema("k string, v int").json(".")
pipeline(rows).writeStream.outputMode("update").format("noop").start()
"""


@pytest.mark.parametrize(
    ("aggregates", "status", "said"),
    [
        ('F.sum("v")', 0, "The query can continue."),
        ('F.sum("v"), F.count("v")', 1, "epochal state evolve CHECKPOINT --operator 0"),
    ],
)
def test_two_versions_of_a_program_are_compared_each_with_its_own_modules(
    tmp_path: Path, aggregates: str, status: int, said: str
) -> None:
    for folder, text in (("old", 'F.sum("v")'), ("new", aggregates)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "pipeline.py").write_text(PIPELINE.format(aggregates=text))
        (tmp_path / folder / "main.py").write_text(USING_IT)
    done = epochal(tmp_path, "check", "new/main.py", "--before", "old/main.py")
    assert done.returncode == status, done.stderr
    assert said in done.stdout


def files(home: Path) -> set[str]:
    return {str(path) for path in (home / "checkpoint").rglob("*")}


def test_an_unchanged_program_is_safe_and_nothing_is_started(home: Path) -> None:
    before = files(home)
    done = check(home, "k")
    assert done.returncode == 0, done.stderr
    assert "The query can continue." in done.stdout
    assert files(home) == before


def test_another_key_of_the_same_type_needs_a_decision_and_a_command(home: Path) -> None:
    done = check(home, "j", "--json")
    assert done.returncode == 1, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    (difference,) = found["differences"]
    words = "--operator 0 --rename k=j --sink OUTPUT --execute"
    command = f"epochal state evolve {home}/checkpoint {words}"
    assert (difference["silent"], difference["command"]) == (True, command)


@pytest.mark.parametrize(
    ("key", "status", "said"),
    [("v", 2, "STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE"), ("no_such_column", 3, "no_such_column")],
    ids=["a key of another type", "a program that fails"],
)
def test_what_cannot_go_on_is_told(home: Path, key: str, status: int, said: str) -> None:
    done = check(home, key)
    assert done.returncode == status, done.stderr
    assert said in done.stdout + done.stderr


def test_no_heartbeat_is_sent_before_the_session_is_ready(tmp_path: Path) -> None:
    """Spark prints a stack trace for each, one every ten seconds, on a machine that is slow."""
    program = tmp_path / "slow.py"
    program.write_text(
        "assert spark.conf.get('spark.executor.heartbeatInterval') == '100s'\n"
        "spark.readStream.format('rate').load().writeStream.format('noop').start()\n"
    )
    checked = epochal(tmp_path, "check", str(program), "--before", str(program))
    assert (checked.returncode, "The query can continue." in checked.stdout) == (0, True)
