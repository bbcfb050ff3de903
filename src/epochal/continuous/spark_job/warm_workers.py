"""Makes Spark fork the workers of tasks from `epochal.warm_daemon`, which has their imports.

Which daemon Spark starts is a setting of the application, `spark.python.daemon.module`. Executors
read it when they start, so on a cluster the user has to set it. On a local master the executor is
the driver, which reads it for each task, so it is set here.

What the daemon imports is in an environment variable of our functions. Spark pools workers by their
environment, so other functions get other workers, from a daemon that imports nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pyspark import SparkContext

from epochal.connectors.worker_python import is_own, worker_python
from epochal.evaluator.evaluator_process import start_early
from epochal.warm_daemon import MODULES

SETTING = "spark.python.daemon.module"
DAEMON = "epochal.warm_daemon"

WARM = (
    "pyspark.worker",
    "pandas?",  # `pyarrow.array` imports it where it is installed
    "pyarrow.pandas_compat",
    "pyarrow.parquet",
    "lz4.block",
    "xxhash",
    "epochal.state.files.codecs",
    "epochal.continuous.tasks.worker",
    "epochal.continuous.spark_job.task_hosts",
    "epochal.continuous.operators.processor.transform_with_state",
    "epochal.continuous.operators.aggregation.aggregate",
    "epochal.continuous.operators.joins.stream_join",
    "epochal.files.local",
    "epochal.connectors.file.file_sink",
    "epochal.connectors.kafka.source.kafka_reader?",
    "epochal.connectors.kafka.sink.kafka_sink?",
)
"""What tasks of most queries import. A question mark follows what may be missing."""


@contextmanager
def warm_workers(sc: SparkContext) -> Iterator[None]:
    """Make Python functions whose workers come from a warm daemon, if the application has one."""
    # The setting holds for the user's functions too. So Spark must run them with an interpreter
    # that has our package: with that of this process.
    own = is_own(sc.pythonExec)
    with worker_python(sc) as python:
        if own and is_own(python):
            _choose_daemon(sc)
        sc.environment[MODULES] = ",".join(WARM)
        try:
            yield
        finally:
            del sc.environment[MODULES]


def warm_evaluator(sc: SparkContext, memory_mb: int) -> None:
    """Start the evaluator before the tasks, on a local master: they run in the driver's JVM.

    On a cluster each task starts it as the first thing that it does.
    """
    context: Any = sc._jsc
    if context.sc().isLocal():
        start_early(memory_mb)


def _choose_daemon(sc: SparkContext) -> None:
    """Choose the warm daemon on a local master, unless the user has chosen one."""
    context: Any = sc._jsc
    settings = context.sc().conf()
    if context.sc().isLocal() and not settings.contains(SETTING):
        settings.set(SETTING, DAEMON)
