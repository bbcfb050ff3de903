"""Finds a running query inside the driver's JVM, the options of its sources, and its end.

It only reads what `StreamExecution` keeps in memory; nothing is computed.

Note: a progress report lists the distinct sources of the *executed* plan, but the options are in
the *analyzed* plan. Spark makes the executed plan by replacing leaves, so the leaves of both plans
correspond one to one.
"""

from __future__ import annotations

from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark import SparkContext
from pyspark.sql import SparkSession

CONTINUOUS = "ContinuousExecution"


def has_jvm() -> bool:
    """Whether this process drives a JVM; with Spark Connect it does not."""
    return SparkContext._active_spark_context is not None


def find_query(query_id: str) -> Any | None:
    """The StreamExecution of a running query of any session; None if the query has ended."""
    session: Any = SparkSession._instantiatedSession
    if session is None or not has_jvm():
        return None
    jvm: Any = session._jvm
    wanted = jvm.java.util.UUID.fromString(query_id)
    query = session._jsparkSession.sharedState().activeStreamingQueries().get(wanted)
    if query is None:
        query = session._jsparkSession.streams().get(wanted)
    if query is not None and query.getClass().getSimpleName() == "StreamingQueryWrapper":
        query = query.streamingQuery()
    return query


def is_continuous(execution: Any) -> bool:
    """Whether the query runs in Spark's continuous mode, which reports no progress."""
    return bool(execution.getClass().getSimpleName() == CONTINUOUS)


def source_options(execution: Any) -> list[dict[str, str]] | None:
    """The options of the query's sources, in the order of its progress reports.

    None before the first batch is planned, because there is no executed plan yet.
    """
    if execution.lastExecution() is None:
        return None
    executed = _leaves(execution.logicalPlan())
    analyzed = _leaves(execution.analyzedPlan())
    if len(executed) != len(analyzed):
        raise RuntimeError(
            f"the executed plan has {len(executed)} leaves, but the analyzed plan has "
            f"{len(analyzed)}, so options cannot be matched to sources"
        )
    return [_options(analyzed[index]) for index, _ in _streams(executed)]


def committed_ends(execution: Any) -> tuple[str | None, ...]:
    """The query's committed offset of each source, in the order of `source_options`."""
    committed = execution.committedOffsets()
    offsets = [committed.get(stream) for _, stream in _streams(_leaves(execution.logicalPlan()))]
    return tuple([str(offset.get().json()) if offset.isDefined() else None for offset in offsets])


def _leaves(plan: Any) -> list[Any]:
    leaves = plan.collectLeaves()
    return [leaves.apply(index) for index in range(leaves.size())]


def _streams(leaves: list[Any]) -> list[tuple[int, Any]]:
    """The distinct streams, and the index of the first leaf of each."""
    streams: list[tuple[int, Any]] = []
    for index, leaf in enumerate(leaves):
        stream = _stream(leaf)
        if stream is not None and not any(stream.equals(other) for _, other in streams):
            streams.append((index, stream))
    return streams


def _stream(leaf: Any) -> Any | None:
    match leaf.getClass().getSimpleName():
        case "StreamingDataSourceV2ScanRelation":
            return leaf.stream()
        case "StreamingExecutionRelation":
            return leaf.source()
    return None


def _options(leaf: Any) -> dict[str, str]:
    match leaf.getClass().getSimpleName():
        case "StreamingRelationV2":
            return {str(k): str(v) for k, v in dict(leaf.extraOptions()).items()}
        case "StreamingRelation":
            pairs = leaf.dataSource().options().toSeq()
            options = [pairs.apply(index) for index in range(pairs.size())]
            return {str(pair._1()): str(pair._2()) for pair in options}
    return {}


SELF_ENDING = {"AvailableNowTrigger", "OneTimeTrigger"}


def is_awaited(execution: Any) -> bool:
    """Whether a flush waits for the end of a run in the driver's JVM.

    If the run is over, its last events are on their way. A query without end is not waited for: the
    wait would always be in vain.
    """
    trigger = str(execution.trigger().getClass().getSimpleName()).rstrip("$")
    return trigger in SELF_ENDING or not execution.isActive()


def is_remotely_awaited(session: Any, query_id: str, run_id: str) -> bool:
    """As `is_awaited`, on a Spark Connect server, which does not tell a query's trigger.

    A client of Spark Connect has no access to the listener bus. It can only ask the server whether
    a query is still active, and then wait for the event of its end.
    """
    query = session.streams.get(query_id)
    return query is None or str(query.runId) != run_id


def await_end(execution: Any, seconds: float) -> bool:
    """Wait until a run has posted its last event; False if it is active after `seconds`."""
    try:
        return bool(execution.awaitTermination(max(1, int(seconds * 1000))))
    except Py4JJavaError:  # how a query failed is the user's concern; here it has ended
        return not execution.isActive()


def drain_bus(seconds: float) -> bool:
    """Wait until Spark's listeners have handled all events; False if `seconds` were not enough.

    Spark calls Python listeners from its bus, some time after the event. A query posts its last
    events before `awaitTermination` returns. So once the query has ended and the bus is empty, the
    listener knows everything about it.

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
