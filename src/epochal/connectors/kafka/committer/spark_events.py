"""Waits until Spark has told its listeners what has happened so far.

Spark calls Python listeners from its listener bus, some time after the event. A query posts its
last events before `awaitTermination` returns, so once the query has ended and the bus is empty, the
listener knows everything about it.

Note: a client of Spark Connect has no access to that bus. It can only ask the server whether a
query is still active, and then wait for the event of its end.
"""

from __future__ import annotations

from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark import SparkContext

from epochal.connectors.kafka.committer.listener_inbox import RunStatus

SELF_ENDING = {"AvailableNowTrigger", "OneTimeTrigger"}


def run_status(execution: Any) -> RunStatus:
    """The state of a run in the driver's JVM."""
    trigger = str(execution.trigger().getClass().getSimpleName()).rstrip("$")
    return RunStatus(bool(execution.isActive()), trigger in SELF_ENDING)


def remote_status(session: Any, query_id: str, run_id: str) -> RunStatus:
    """The state of a run on a Spark Connect server, which does not tell a query's trigger."""
    found = session.streams.get(query_id)
    return RunStatus(found is not None and str(found.runId) == run_id, False)


def await_end(execution: Any, seconds: float) -> bool:
    """Wait until a run has posted its last event; False if it is active after `seconds`."""
    try:
        return bool(execution.awaitTermination(max(1, int(seconds * 1000))))
    except Py4JJavaError:  # how a query failed is the user's concern; here it has ended
        return not execution.isActive()


def drain_bus(seconds: float) -> bool:
    """Wait until Spark's listeners have handled all events; False if `seconds` were not enough.

    Without a JVM there is nothing to wait for: a SparkContext empties its bus when it stops.
    """
    context: Any = SparkContext._active_spark_context
    if context is None:
        return True
    try:
        context._jsc.sc().listenerBus().waitUntilEmpty(max(1, int(seconds * 1000)))
    except Py4JJavaError:  # java.util.concurrent.TimeoutException
        return False
    return True
