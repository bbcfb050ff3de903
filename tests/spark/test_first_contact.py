"""A program of a new user: `python my_query.py` in a virtual environment, nothing configured."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 400

SESSION = """
import os
import sys
import traceback

import epochal
from pyspark.sql import SparkSession


def leave(*error):
    traceback.print_exception(*error)
    sys.stderr.flush()
    os._exit(1)  # without the messages of a cluster that shuts down


sys.excepthook = leave

spark = (
    SparkSession.builder.master("MASTER")
    .config("spark.ui.enabled", "false")
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.driver.bindAddress", "127.0.0.1")
    .getOrCreate()
)
spark.sparkContext.setLogLevel("OFF")
"""

COUNTS = """
rows = epochal.read_stream(spark).format("rate").option("rowsPerSecond", 500).load()
counts = rows.select("value % 3 AS k").group_by("k").count()
writer = counts.write_stream.format("noop").output_mode("update")
query = writer.option("maxRestarts", 0).start()
query.process_all_available(120)
query.stop()
print("committed", query.last_progress is not None, flush=True)
"""

PUBSUB = """
from epochal.testing.pubsub import running_server

with running_server("--project", "demo", "--topic", "words") as server:
    spark.conf.set("spark.pubsub.emulatorHost", server.address)
    epochal.register(spark)
    words = spark.createDataFrame([(b"one",), (b"two",)], "data binary")
    words.write.format("pubsub").options(projectId="demo", topicId="words").mode("append").save()
print("published", flush=True)
"""

BROKEN = """
def half(batches):
    for batch in batches:
        raise ValueError("no such luck")
        yield batch

rows = epochal.read_stream(spark).format("rate").option("rowsPerSecond", 500).load()
query = rows.map_in_arrow(half, "value bigint").write_stream.format("noop").start()
try:
    query.await_termination()
except epochal.errors.QueryFailedError as error:
    print(error.cause.replace("\\n", "|"), query.status["restarts"], "restarts", flush=True)
"""


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an interpreter without any package, which is the `python3` of the PATH."""
    home = tmp_path_factory.mktemp("bare")
    venv.create(home, symlinks=True)
    return home / "bin"


@dataclass(frozen=True)
class Ended:
    """How a program ended, and what it wrote."""

    returncode: int
    stdout: str
    stderr: str


def ran(
    program: str, home: Path, bare_python: Path, master: str = "local[2]", **more: str
) -> Ended:
    file = home / "my_query.py"
    file.write_text(SESSION.replace("MASTER", master) + program)
    env = {
        key: text for key, text in os.environ.items() if not key.startswith(("PYSPARK", "SPARK"))
    }
    env |= {"PATH": f"{bare_python}:/usr/bin:/bin", "PYTHONPATH": str(ROOT / "src"), **more}
    out, complaints = home / "out.log", home / "err.log"
    with open(out, "wb") as stdout, open(complaints, "wb") as stderr:
        # Files, not pipes: Spark's processes keep them open for some time after the program.
        done = subprocess.run(
            [sys.executable, str(file)],
            env=env,
            cwd=home,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            timeout=SECONDS,
            check=False,
        )
    return Ended(done.returncode, out.read_text(), complaints.read_text())


def test_a_program_publishes_with_its_own_interpreter_on_a_local_master(
    tmp_path: Path, bare_python: Path
) -> None:
    done = ran(PUBSUB, tmp_path, bare_python)
    assert (done.returncode, done.stdout.strip()) == (0, "published"), done.stderr[-3000:]


@pytest.mark.parametrize(
    "program", [pytest.param(COUNTS, id="query"), pytest.param(PUBSUB, id="pubsub")]
)
def test_an_interpreter_without_our_packages_is_named_in_one_sentence(
    program: str, tmp_path: Path, bare_python: Path
) -> None:
    bare = str(bare_python / "python3")
    done = ran(program, tmp_path, bare_python, PYSPARK_PYTHON=bare)
    assert done.returncode == 1
    (said,) = [line for line in done.stderr.splitlines() if "WorkerPythonError: " in line]
    assert f"WorkerPythonError: Spark's Python workers cannot run the query: {bare} on " in said
    assert f"no pyarrow, the driver {pa.__version__}" in said


def test_the_workers_of_a_cluster_are_asked_before_the_query_starts(
    tmp_path: Path, bare_python: Path
) -> None:
    done = ran(COUNTS, tmp_path, bare_python, "local-cluster[1,2,1024]")
    assert done.returncode == 1
    (said,) = [line for line in done.stderr.splitlines() if "WorkerPythonError: " in line]
    assert "WorkerPythonError: Spark's Python workers cannot run the query: " in said
    assert f"no pyarrow, the driver {pa.__version__}" in said


def test_a_program_runs_and_a_function_that_fails_ends_its_query_at_its_own_line(
    tmp_path: Path, bare_python: Path
) -> None:
    done = ran(COUNTS + BROKEN, tmp_path, bare_python)
    committed, _, failed = done.stdout.partition("\n")
    assert committed == "committed True", done.stderr[-3000:]
    lines = failed.strip().split("|")
    place = f'  File "{tmp_path}/my_query.py", line '
    assert lines[0] == "Traceback (most recent call last):", done.stderr[-3000:]
    assert lines[1].startswith(place)
    assert lines[1].endswith(", in half")
    assert lines[-2:] == ["ValueError: no such luck", " 0 restarts"]
