"""Checks once per Spark application that its Python workers can run our code.

Tasks of a query are pickled functions. On a worker without `epochal`, or with another version of
it, they fail while they are unpickled, with a stack trace that does not name the cause. So a small
job asks each executor for its interpreter and versions first.

On a local master that runs the driver's own interpreter there is nothing to ask.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from py4j.protocol import Py4JJavaError
from pyspark import RDD, SparkContext

from epochal.connectors.worker_python import (
    QUESTION,
    PythonFound,
    check_python,
    for_worker_python,
    is_own,
    own_python,
)
from epochal.continuous.spark_job.barrier_job import failure_text, headline
from epochal.continuous.spark_job.placement import executors, placed
from epochal.errors import WorkerPythonError

_checked: WeakKeyDictionary[SparkContext, bool] = WeakKeyDictionary()


def check_workers(sc: SparkContext) -> None:
    """Raise WorkerPythonError if a worker cannot run our tasks. Asks once per application."""
    if sc in _checked:
        return
    context: Any = sc._jsc
    wishes = [[f"executor_{each.host}_{each.executor_id}"] for each in executors(sc)] or [[]]
    numbers: Sequence[Any] = range(len(wishes))
    asking = placed(sc, numbers, wishes).mapPartitions(_answering(QUESTION))
    job, python = for_worker_python(asking)
    if not (context.sc().isLocal() and is_own(python)):
        own = own_python()
        for found in _answers(job, python):
            check_python(found, own)
    _checked[sc] = True


def _answers(job: RDD[list[str]], python: str) -> list[PythonFound]:
    try:
        answers = job.collect()
    except Py4JJavaError as error:
        reason = f"{python} does not start there ({headline(failure_text(error)).rstrip('.')})"
        raise WorkerPythonError(reason, sys.executable) from error
    return [PythonFound(*each) for each in answers]


def _answering(question: str) -> Callable[[Iterable[int]], Iterator[list[str]]]:
    """Return the function that a worker runs.

    It is made here because cloudpickle sends such a function whole. A function of this module would
    be sent as a name, and the worker would have to import it.
    """

    def answer(_numbers: Iterable[int]) -> Iterator[list[str]]:
        names: dict[str, list[str]] = {}
        exec(question, names)
        yield names["answer"]

    return answer
