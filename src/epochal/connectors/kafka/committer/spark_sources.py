"""Finds a running query inside the driver's JVM, and the options of its sources.

It only reads what `StreamExecution` keeps in memory; nothing is computed.

Note: a progress report lists the distinct sources of the *executed* plan, but the options are in
the *analyzed* plan. Spark makes the executed plan by replacing leaves, so the leaves of both plans
correspond one to one.
"""

from __future__ import annotations

from typing import Any

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
    found = session._jsparkSession.sharedState().activeStreamingQueries().get(wanted)
    if found is None:
        found = session._jsparkSession.streams().get(wanted)
    if found is not None and found.getClass().getSimpleName() == "StreamingQueryWrapper":
        found = found.streamingQuery()
    return found


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
    streams: list[Any] = []
    options: list[dict[str, str]] = []
    for executed_leaf, analyzed_leaf in zip(executed, analyzed, strict=True):
        stream = _stream(executed_leaf)
        if stream is not None and not any(stream.equals(known) for known in streams):
            streams.append(stream)
            options.append(_options(analyzed_leaf))
    return options


def committed_ends(execution: Any) -> tuple[str | None, ...]:
    """The query's committed offset of each source, in the order of `source_options`."""
    committed = execution.committedOffsets()
    ends: list[str | None] = []
    streams: list[Any] = []
    for leaf in _leaves(execution.logicalPlan()):
        stream = _stream(leaf)
        if stream is not None and not any(stream.equals(known) for known in streams):
            streams.append(stream)
            offset = committed.get(stream)
            ends.append(str(offset.get().json()) if offset.isDefined() else None)
    return tuple(ends)


def _leaves(plan: Any) -> list[Any]:
    leaves = plan.collectLeaves()
    return [leaves.apply(index) for index in range(leaves.size())]


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
            each = [pairs.apply(index) for index in range(pairs.size())]
            return {str(pair._1()): str(pair._2()) for pair in each}
    return {}
