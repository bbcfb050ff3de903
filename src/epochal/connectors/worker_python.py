"""Chooses the Python interpreter with which Spark starts its workers, and compares versions.

Spark uses the environment variable `PYSPARK_PYTHON`, and without it the first `python3` on the
PATH. A program that runs in a virtual environment which is not activated finds another `python3`
there, without the packages of the program. On a local master the workers run on the driver's
machine, so the driver's own interpreter is the right one unless the user has chosen another.

Note: only the functions that are made inside `worker_python` use this interpreter. The user's own
Spark jobs run with the interpreter that Spark has chosen, as without us.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from epochal.errors import WorkerPythonError

if TYPE_CHECKING:
    from pyspark import RDD, SparkContext

T = TypeVar("T")

VARIABLE = "PYSPARK_PYTHON"
SETTING = "spark.pyspark.python"
ANSWER_SECONDS = 60.0

QUESTION = """
import importlib, json, platform, socket, sys

def version(name):
    try:
        return str(importlib.import_module(name).__version__)
    except Exception:
        return ""

answer = [
    socket.gethostname(),
    sys.executable,
    platform.python_version(),
    version("epochal"),
    version("pyarrow"),
]
"""
"""Source code that finds `answer`, the fields of PythonFound. It needs nothing but Python. Text,
because a function of ours would be sent to workers as a name that they have to import."""


@dataclass(frozen=True, slots=True)
class PythonFound:
    """An interpreter and what it can import. A version is empty if the import fails."""

    host: str
    executable: str
    python: str
    epochal: str
    pyarrow: str


def chosen_python(
    spark_choice: str, *, local: bool, environ: Mapping[str, str], setting: str | None, own: str
) -> str:
    """Return the interpreter for workers. Pure.

    The user's choice comes first: the variable, which Spark has read already, or the setting, which
    Spark reads only in `spark-submit`.
    """
    if environ.get(VARIABLE):
        return spark_choice
    if setting:
        return setting
    return own if own and local else spark_choice


_changing = threading.RLock()
"""Held while a context has another interpreter than Spark's choice, so that this is undone."""


@contextmanager
def worker_python(sc: SparkContext) -> Iterator[str]:
    """Make Python functions for this interpreter; it is the value of the block.

    PySpark writes the interpreter into a function when it sends the function to the JVM.
    """
    context: Any = sc._jsc
    with _changing:
        before = sc.pythonExec
        sc.pythonExec = chosen_python(
            before,
            local=context.sc().isLocal(),
            environ=os.environ,
            setting=sc.getConf().get(SETTING),
            own=sys.executable,
        )
        try:
            yield sc.pythonExec
        finally:
            sc.pythonExec = before


def for_worker_python(rdd: RDD[T]) -> tuple[RDD[T], str]:
    """Return the same RDD with its functions made for this interpreter, and the interpreter."""
    from pyspark import RDD

    with worker_python(rdd.context) as python:
        built = rdd._jrdd
    return RDD(built, rdd.context, rdd._jrdd_deserializer), python


def own_python() -> PythonFound:
    names: dict[str, Any] = {}
    exec(QUESTION, names)
    return PythonFound(*names["answer"])


def is_own(python: str) -> bool:
    """Return whether a command runs the interpreter of this process."""
    # Not the real path: a virtual environment's interpreter is a link to one without its packages.
    path = shutil.which(python)
    return path is not None and os.path.abspath(path) == os.path.abspath(sys.executable)


def difference(found: PythonFound, own: PythonFound) -> str | None:
    """Return in words why a worker cannot run tasks of this driver; None if it can. Pure.

    `epochal` must be the same, because tasks are pickled objects of its classes. Of Python the
    minor version must be the same, and of pyarrow the major version.
    """
    triples = [
        ("epochal", found.epochal, own.epochal, None),
        ("pyarrow", found.pyarrow, own.pyarrow, 1),
        ("Python", found.python, own.python, 2),
    ]
    words = [
        f"{name} {theirs}, the driver {ours}" if theirs else f"no {name}, the driver {ours}"
        for name, theirs, ours, parts in triples
        if theirs.split(".")[:parts] != ours.split(".")[:parts]
    ]
    return "; ".join(words) or None


def check_python(theirs: PythonFound, own: PythonFound) -> None:
    """Raise WorkerPythonError if a worker with this interpreter cannot run our tasks."""
    words = difference(theirs, own)
    if words is not None:
        reason = f"{theirs.executable} on {theirs.host} has {words}"
        raise WorkerPythonError(reason, own.executable)


def check_here(python: str) -> None:
    """Run an interpreter on this host and raise WorkerPythonError if it cannot run our code.

    One that does not exist here is not checked: it may exist on the executors.
    """
    if is_own(python) or shutil.which(python) is None:
        return
    command = [python, "-c", f"{QUESTION}\nprint(json.dumps(answer))"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=ANSWER_SECONDS, check=False
    )
    if done.returncode == 0:
        check_python(PythonFound(*json.loads(done.stdout)), own_python())
