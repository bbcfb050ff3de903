"""Java and Scala classes of users run beside the tasks: functions, typed aggregates, generators.
So do those of Spark's package for Avro.

The classes are compiled when the tests run, with javac and with the Scala compiler that PySpark
has. Each test is a process of its own, because the jar belongs to an application.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from functools import cache
from pathlib import Path
from typing import Any

import pyspark
import pytest
from tests.spark.releases import ROOT, tree

from epochal.testing.jars import resolve

pytestmark = pytest.mark.full

SOURCES = Path(__file__).parent / "user_classes"
INSTALLED = Path(str(pyspark.__file__)).parent
EXPECTED: dict[str, Any] = {
    "functions": [
        [number, 2 * number, number + 107]
        for number in (20, 21, 22, 23, 24, 25, 4, 40, 41, 42, 43, 44, 45, 5)
    ],
    "aggregate": [[0, 44], [1, 44]],
    "generator": [[0, 0], [2, 2], [4, 4], [5, -6]],
}


def java(program: str) -> str:
    home = os.environ.get("JAVA_HOME")
    return str(Path(home, "bin", program)) if home else program


@cache
def jar_of(jars: Path, folder: Path) -> Path:
    """The classes, compiled with the jars of a release."""
    classes, path = folder / "classes", f"{jars}/*"
    classes.mkdir(parents=True)
    javac, scalac = [java("javac")], [java("java"), "-cp", path, "scala.tools.nsc.Main"]
    for compiler, kind in ((javac, "*.java"), (scalac, "*.scala")):
        command = [*compiler, "-d", str(classes), "-cp", path, *map(str, SOURCES.glob(kind))]
        subprocess.run(command, check=True, timeout=120)
    made = folder / "user-classes.jar"
    with zipfile.ZipFile(made, "w") as jar:
        for file in classes.rglob("*.class"):
            jar.write(file, file.relative_to(classes))
    return made


@pytest.fixture(scope="module")
def jar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return jar_of(INSTALLED / "jars", tmp_path_factory.mktemp("jar"))


def answer_of(
    folder: Path,
    jar: Path,
    master: str,
    *settings: str,
    spark: Path = INSTALLED.parent,
    child: str = "user_classes_child",
) -> tuple[dict[str, Any], str]:
    """The rows by query and engine, and what the process has written to its log."""
    environment = {
        **{key: value for key, value in os.environ.items() if key != "SPARK_HOME"},
        "PYTHONPATH": os.pathsep.join((str(spark), str(ROOT), str(ROOT / "src"))),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "TZ": "UTC",
    }
    answer = folder / "answer.json"
    command = [sys.executable, "-m", f"tests.frames.{child}", str(answer), str(jar)]
    done = subprocess.run(
        [*command, master, *settings],
        env=environment,
        cwd=folder,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-6000:]
    return json.loads(answer.read_text()), done.stderr


def check(found: dict[str, Any]) -> None:
    for name, rows in EXPECTED.items():
        assert found[name] == {"spark": rows, "epochal": rows}, name


def test_classes_of_a_jar_run_beside_the_tasks(jar: Path, tmp_path: Path) -> None:
    found, log = answer_of(tmp_path, jar, "local[2]", f"spark.jars={jar}")
    check(found)
    error = found["failed"]
    assert "FAILED_EXECUTE_UDF" in error
    assert "thirteen" in error
    assert len(error) < 3_000
    assert "\tat user.Twice.call" not in error
    assert "at user.Twice.call(Twice.java" in log
    assert "user.Twice is not on the class path" in found["missing"]
    assert "not on this executor: user-classes.jar" in found["missing"]


@pytest.mark.parametrize(
    ("master", "settings"),
    [
        ("local[2]", []),
        ("local[2]", ["spark.python.use.daemon=false"]),
        ("local-cluster[2,1,1024]", []),
    ],
    ids=["added while it runs", "without a daemon", "a cluster"],
)
def test_the_same_with_other_executors(
    jar: Path, tmp_path: Path, master: str, settings: list[str]
) -> None:
    found, _ = answer_of(tmp_path, jar, master, *settings)
    check(found)


@pytest.mark.parametrize("release", ["4.0.5", "4.1.4", "4.2.1"])
def test_the_same_with_earlier_releases(release: str, tmp_path: Path) -> None:
    spark = tree(release)
    jar = jar_of(spark / "pyspark" / "jars", tmp_path / "jar")
    found, _ = answer_of(tmp_path, jar, "local[2]", f"spark.jars={jar}", spark=spark)
    check(found)


AVRO = "org.apache.spark:spark-avro_2.13:4.1.1"
"""Later releases of Spark run it too."""


def test_avro_is_read_and_written_by_sparks_package(tmp_path: Path) -> None:
    jar = next(path for path in resolve(AVRO) if "spark-avro" in path.name)
    found, _ = answer_of(tmp_path, jar, "local[2]", f"spark.jars={jar}", child="avro_child")
    missing = found.pop("missing")
    assert found.keys() == {"files", "written", "read", "broken"}
    for name, rows in found.items():
        assert len(rows["spark"]) == 40, name
        assert rows["epochal"] == rows["spark"], name
    assert f"not on this executor: {jar.name}" in missing


def test_random_avro_payloads_are_decoded_as_sparks_package_does(tmp_path: Path) -> None:
    jar = next(path for path in resolve(AVRO) if "spark-avro" in path.name)
    settings = (f"spark.jars={jar}", "epochal.test.seeds=0:25")
    report, _ = answer_of(tmp_path, jar, "local[1]", *settings, child="random_avro_child")
    assert report == {"schemas": 25, "payloads": 300, "different": []}
