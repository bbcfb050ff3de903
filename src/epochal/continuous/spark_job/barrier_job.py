"""Runs the long-running tasks of a query as one Spark barrier job.

Only a barrier job fits. It starts all tasks together or none, and Spark never retries a single
task: a second copy of one task would join the peers of the first. If one task fails, Spark ends
them all, and the engine that started the job decides whether to start another attempt.

Note: Spark reports only after ten minutes that a cluster is too small for a barrier job, and waits
forever if the slots exist but are busy. So slots are counted before the job is submitted.

Tasks are pickled functions. On a worker without `epochal`, or with another version of it, they fail
while they are unpickled, with a stack trace that does not name the cause. So once per application a
small job asks each executor for its interpreter and versions first (`check_workers`). On a local
master that runs the driver's own interpreter there is nothing to ask.

Workers are forked from `epochal.warm_daemon`, which has their imports. Which daemon Spark starts is
a setting of the application, `spark.python.daemon.module`. Executors read it when they start, so on
a cluster the user has to set it. On a local master the executor is the driver, which reads it for
each task, so it is set here. What the daemon imports is in an environment variable of our
functions. Spark pools workers by their environment, so other functions get other workers, from a
daemon that imports nothing.
"""

from __future__ import annotations

import logging
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import InheritableThread, SparkContext

from epochal.clock import Clock
from epochal.connectors.worker_python import (
    QUESTION,
    PythonFound,
    check_python,
    for_worker_python,
    is_own,
    own_python,
    worker_python,
)
from epochal.continuous.spark_job.placement import excluded, executors, placed
from epochal.errors import (
    DriverLostError,
    OptionError,
    QueryError,
    TooFewSlotsError,
    WorkerPythonError,
)
from epochal.evaluator.evaluator_process import start_early
from epochal.warm_daemon import MODULES

logger = logging.getLogger(__name__)

FIRST_POLL_SECONDS, MAX_POLL_SECONDS = 0.01, 0.1
"""How often slots are counted. Those of tasks that have just ended become free within a few
milliseconds; a new executor takes seconds, and each count costs the JVM some work."""
CANCEL_AGAIN_SECONDS = 0.5
"""Cancellation is repeated: one that arrives before Spark has submitted the job is lost."""

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

OnEnd = Callable[[BaseException | None], None]

_PYTHON_CAUSE = re.compile(
    r"PythonException: [^\n]*?(Traceback .*?)(?=\n ?SQLSTATE: |\n\s+at (?:org|java|scala)\.|\Z)",
    re.DOTALL,
)

_FRAME = re.compile(r"\s+(?:at |\.\.\. \d+ more)")

_checked: WeakKeyDictionary[SparkContext, bool] = WeakKeyDictionary()
"""The applications whose workers can run our tasks."""


@dataclass(frozen=True, slots=True)
class Slots:
    """The task slots of the cluster, and how many of them are free."""

    total: int
    free: int


def count_slots(sc: SparkContext) -> Slots:
    """Return the slots of the executors that are alive now."""
    context: Any = sc._jsc
    scala = context.sc()
    profile = scala.resourceProfileManager().defaultResourceProfile()
    total = int(scala.maxNumConcurrentTasks(profile))
    # Ask the scheduler itself: the status store may be seconds behind it.
    jvm: Any = sc._jvm
    running = scala.taskScheduler().runningTasksByExecutors()
    counts = dict(jvm.scala.jdk.javaapi.CollectionConverters.asJava(running))
    # Spark leaves out the slots of an excluded executor, but not the tasks that were lost there.
    gone = excluded(sc)
    busy = sum(count for executor, count in counts.items() if executor not in gone)
    return Slots(total, max(0, total - busy))


def wait_for_slots(
    sc: SparkContext,
    needed: int,
    timeout_seconds: float,
    clock: Clock,
    stopped: Callable[[], bool] = lambda: False,
) -> None:
    """Wait until `needed` slots are free, or `stopped`; TooFewSlotsError if time runs out."""
    deadline, pause = clock.monotonic() + timeout_seconds, FIRST_POLL_SECONDS
    while not stopped():
        slots = count_slots(sc)
        if slots.free >= needed:
            return
        if clock.monotonic() >= deadline:
            raise TooFewSlotsError(needed, slots.free, slots.total, timeout_seconds)
        clock.sleep(pause)
        pause = min(MAX_POLL_SECONDS, 2 * pause)


def check_conf(sc: SparkContext) -> None:
    """Refuse Spark settings under which a long-running barrier job cannot work."""
    conf = sc.getConf()
    if _is_on(conf.get("spark.dynamicAllocation.enabled", "false")):
        raise OptionError(
            "spark.dynamicAllocation.enabled is true. Spark then refuses barrier jobs "
            "(SPARK-24942), and a continuous query runs as one. Set it to false."
        )
    idle = conf.get("spark.python.worker.idleTimeoutSeconds", "0") or "0"
    kills = conf.get("spark.python.worker.killOnIdleTimeout", "false")
    if idle.rstrip("s") != "0" and _is_on(kills):
        raise OptionError(
            f"spark.python.worker.idleTimeoutSeconds is {idle} and killOnIdleTimeout is true: "
            f"tasks of a continuous query return no rows to Spark, so it would kill them as idle. "
            f"Set the first to 0 or the second to false."
        )


def jvm_is_alive(sc: SparkContext) -> bool:
    """Return whether the driver's JVM still runs; without it there are no executors either."""
    gateway: Any = SparkContext._gateway
    if gateway is None:
        return False
    process = getattr(gateway, "proc", None)
    if process is not None and process.poll() is not None:
        return False
    # A killed process may exist for a while, but it no longer answers.
    try:
        context: Any = sc._jsc
        context.sc().isStopped()
    except (Py4JError, OSError):
        return False
    return True


def why_lost(sc: SparkContext) -> QueryError | None:
    """Return why no task can run: the JVM is gone or the context was stopped. None if they can."""
    if not jvm_is_alive(sc):
        return DriverLostError("its process has ended")
    context: Any = sc._jsc
    try:
        stopped = context is None or context.sc().isStopped()
    except (Py4JError, OSError) as error:
        return DriverLostError(str(error))
    return QueryError("The SparkContext was stopped, and the query with it.") if stopped else None


def failure_text(error: BaseException) -> str:
    """Return what went wrong in a job: the Python traceback if there is one, no JVM frames.

    Spark adds only that a barrier job is not recovered.
    """
    if not isinstance(error, Py4JJavaError):
        return f"{type(error).__name__}: {error}"
    return cause_in(str(error.java_exception.getMessage()))


def cause_in(text: str) -> str:
    """Return the part of Spark's error text that gives the cause."""
    match = _PYTHON_CAUSE.search(text)
    if match:
        return match[1].strip()
    lines = text.partition("\n\nDriver stacktrace")[0].splitlines()
    words = [line for line in lines if line.strip() and not _FRAME.match(line)]
    telling = [line for line in words if not line.endswith("finished unsuccessfully.")]
    return "\n".join(telling or words)


def headline(cause: str) -> str:
    """Return the line of a cause that names the error: a traceback's last line, else the first."""
    lines = cause.strip().splitlines() or [""]
    return lines[-1] if lines[0].startswith("Traceback") else lines[0]


def check_workers(sc: SparkContext) -> None:
    """Raise WorkerPythonError if a worker cannot run our tasks. Asks once per application."""
    if sc in _checked:
        return
    context: Any = sc._jsc
    wishes = [[executor.location] for executor in executors(sc)] or [[]]
    numbers: Sequence[Any] = range(len(wishes))
    asking = placed(sc, numbers, wishes).mapPartitions(_answering(QUESTION))
    job, python = for_worker_python(asking)
    if not (context.sc().isLocal() and is_own(python)):
        own = own_python()
        try:
            answers = job.collect()
        except Py4JJavaError as error:
            reason = f"{python} does not start there ({headline(failure_text(error)).rstrip('.')})"
            raise WorkerPythonError(reason, sys.executable) from error
        for answer in answers:
            check_python(PythonFound(*answer), own)
    _checked[sc] = True


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


@contextmanager
def warm_workers(sc: SparkContext) -> Iterator[None]:
    """Make Python functions whose workers come from a warm daemon, if the application has one."""
    # The setting holds for the user's functions too. So Spark must run them with an interpreter
    # that has our package: with that of this process.
    own = is_own(sc.pythonExec)
    with worker_python(sc) as python:
        if own and is_own(python):
            context: Any = sc._jsc
            settings = context.sc().conf()
            # On a local master it is chosen here, unless the user has chosen one.
            if context.sc().isLocal() and not settings.contains(SETTING):
                settings.set(SETTING, DAEMON)
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


class BarrierJob:
    """The job of one attempt: a function, called in each task with the task's number."""

    def __init__(
        self,
        sc: SparkContext,
        task: Callable[[int], None],
        locations: Sequence[Sequence[str]],
        *,
        group: str,
        description: str,
        on_end: OnEnd,
    ) -> None:
        self._sc, self._task, self._locations = sc, task, locations
        self._group, self._description, self._on_end = group, description, on_end
        self._cancelled = threading.Event()
        self._ended = threading.Event()
        self._thread = InheritableThread(target=self._run, name=f"epochal-job-{group}", daemon=True)

    def start(self) -> BarrierJob:
        """Submit the job. `on_end` is called once, on another thread, when the job is over."""
        self._thread.start()
        return self

    def cancel(self) -> None:
        """Ask Spark to kill all tasks; returns at once."""
        self._cancelled.set()
        if self._ended.is_set():
            return
        try:
            self._sc.cancelJobGroup(self._group)
        except (Py4JError, OSError, AttributeError) as error:
            logger.warning("job %s could not be cancelled: %s", self._group, error)

    def end(self, timeout_seconds: float) -> bool:
        """Cancel, and wait until the tasks are gone; return whether they are."""
        for _ in range(max(1, round(timeout_seconds / CANCEL_AGAIN_SECONDS))):
            self.cancel()
            if self._ended.wait(CANCEL_AGAIN_SECONDS):
                return True
        return self._ended.is_set()

    def wait(self, timeout_seconds: float) -> bool:
        """Wait until the job is over; return whether it is."""
        return self._ended.wait(timeout_seconds)

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            self._collect()
        except BaseException as raised:  # noqa: BLE001  passed to `on_end`
            error = raised if jvm_is_alive(self._sc) else DriverLostError(str(raised))
        self._ended.set()  # first: `on_end` may lead to `end`, which waits for it
        self._on_end(error)

    def _collect(self) -> None:
        self._sc.setJobGroup(self._group, self._description, interruptOnCancel=True)
        numbers: Sequence[Any] = range(len(self._locations))
        rdd = placed(self._sc, numbers, self._locations)
        with warm_workers(self._sc):
            job, _ = for_worker_python(rdd.barrier().mapPartitions(_each(self._task)))
        # A cancellation between this look and the submission is lost; `end` repeats it.
        if not self._cancelled.is_set():
            job.collect()


def _each(task: Callable[[int], None]) -> Callable[[Iterable[int]], Iterator[None]]:
    def run(numbers: Iterable[int]) -> Iterator[None]:
        for number in numbers:
            task(number)
        return iter(())

    return run


def _is_on(text: str | None) -> bool:
    return (text or "").strip().lower() == "true"
