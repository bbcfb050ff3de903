"""The demo's Spark session: local, reachable only from this machine, its log in a file."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession

from epochal.errors import ComponentError

LINES_SHOWN = 5


def local_session(*, tasks: int, log: Path) -> SparkSession:
    """A local Spark session with `tasks` slots; `log` is where stderr goes meanwhile."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = (
        SparkSession.builder.master(f"local[{tasks}]")
        .appName("epochal demo")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.python.task.killTimeout", "200ms")
    )
    try:
        spark = builder.getOrCreate()
    except Exception as error:
        last = log.read_text(errors="replace").splitlines()[-LINES_SHOWN:]
        log_end = "\n".join(last) or str(error)
        raise ComponentError(
            f"Spark did not start. {log} has its log, which ends: {log_end}"
        ) from error
    # The demo kills a worker on purpose. The view reports this in one line, so the errors that
    # the query would log are suppressed.
    logging.getLogger("epochal").setLevel(logging.CRITICAL)
    return spark


@contextmanager
def errors_to(log: Path) -> Iterator[None]:
    """Send stderr to a file: of this process in the block, of its children as long as they run.

    The JVM, Kafka's client and others write there, in the middle of a live view.
    """
    sys.stderr.flush()
    stderr = os.dup(2)
    with log.open("ab") as target:
        os.dup2(target.fileno(), 2)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(stderr, 2)
        os.close(stderr)
