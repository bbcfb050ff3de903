"""Lag and committer metrics in Prometheus' text form. Pure.

Lag is written under the names of two common exporters, so that existing dashboards work:
kafka-lag-exporter (`kafka_consumergroup_group_*`, label `group`) and kafka_exporter
(`kafka_consumergroup_*`, label `consumergroup`). Both sets have the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from epochal.connectors.kafka.committer.lag import PartitionLag
from epochal.metrics.prometheus import Metric, Sample, text_of

if TYPE_CHECKING:
    from epochal.connectors.kafka.cluster_worker import GroupStats

Number: TypeAlias = float | int | None
GaugeText: TypeAlias = tuple[str, str, Callable[[PartitionLag], Number]]
"""Name, help and value of a gauge with a sample per partition."""

_OF_GROUPS: tuple[GaugeText, ...] = (
    ("kafka_consumergroup_group_offset", "Committed offset.", lambda lag: lag.committed),
    ("kafka_consumergroup_group_lag", "Lag in records.", lambda lag: lag.committed_lag),
    ("kafka_consumergroup_group_lag_seconds", "Lag in seconds.", lambda lag: lag.seconds),
)
_OF_PARTITIONS: tuple[GaugeText, ...] = (
    ("kafka_partition_latest_offset", "End offset of the partition.", lambda lag: lag.latest),
    (
        "kafka_partition_earliest_offset",
        "Offset of the oldest record in the partition.",
        lambda lag: lag.earliest,
    ),
)
_OF_KAFKA_EXPORTER: tuple[GaugeText, ...] = (
    ("kafka_consumergroup_current_offset", "Committed offset.", lambda lag: lag.committed),
    ("kafka_consumergroup_lag", "Lag in records.", lambda lag: lag.committed_lag),
)
_OF_QUERIES: tuple[GaugeText, ...] = (
    (
        "epochal_query_lag",
        "Records between the query's processed offset and the end of the partition.",
        lambda lag: lag.processed_lag,
    ),
    (
        "epochal_query_processed_offset",
        "The next record the query will read.",
        lambda lag: lag.processed,
    ),
)


def lag_text(lags: Sequence[PartitionLag], cluster_name: str) -> str:
    """The lag of every partition, and of every group."""
    cluster = {"cluster_name": cluster_name}
    grouped = [lag for lag in lags if lag.group is not None]
    by_partition = {(lag.topic, lag.partition): lag for lag in grouped}
    return text_of(
        [
            *_gauges(_OF_GROUPS, grouped, lambda lag: {**cluster, "group": lag.group or ""}),
            *_group_gauges(grouped, cluster),
            *_gauges(_OF_PARTITIONS, by_partition.values(), lambda _: cluster),
            *_gauges(_OF_KAFKA_EXPORTER, grouped, lambda lag: {"consumergroup": lag.group or ""}),
            *_gauges(
                _OF_QUERIES,
                lags,
                lambda lag: {**cluster, "query": lag.query or "", "group": lag.group or ""},
            ),
        ]
    )


_GROUP_METRICS: tuple[tuple[str, str, str, Callable[[GroupStats], float | int]], ...] = (
    ("commits_total", "counter", "Commits to the group.", lambda group: group.commits),
    ("failures_total", "counter", "Commit attempts that failed.", lambda group: group.failures),
    ("refusals_total", "counter", "Commits that were refused.", lambda group: group.refusals),
    (
        "skipped_backwards_total",
        "counter",
        "Commits that skipped a partition because the group was ahead.",
        lambda group: group.skipped_backwards,
    ),
    (
        "healthy",
        "gauge",
        "1 if the last commit attempt succeeded.",
        lambda group: int(not group.last_error),
    ),
    (
        "last_commit_timestamp_seconds",
        "gauge",
        "Time of the last commit to the group.",
        lambda group: group.last_commit_ms / 1000,
    ),
)


def committer_text(
    groups: Mapping[tuple[str, str], GroupStats], *, pending: int, dropped: int, errors: int
) -> str:
    """The counters of an offset committer."""
    prefix = "epochal_kafka_committer_"
    totals = (
        ("pending_offsets", "gauge", "Offsets not committed yet.", pending),
        (
            "dropped_events_total",
            "counter",
            "Events dropped because too many were waiting.",
            dropped,
        ),
        ("errors_total", "counter", "Internal errors of the committer.", errors),
    )
    metrics = []
    for name, kind, help_text, value_of in _GROUP_METRICS:
        samples = [
            Sample({"bootstrap_servers": servers, "group": group}, value_of(stats))
            for (servers, group), stats in groups.items()
        ]
        metrics.append(Metric(prefix + name, kind, help_text, samples))
    metrics += [
        Metric(prefix + name, kind, help_text, [Sample({}, total)])
        for name, kind, help_text, total in totals
    ]
    return text_of(metrics)


def _gauges(
    texts: Iterable[GaugeText],
    lags: Collection[PartitionLag],
    labels_of: Callable[[PartitionLag], Mapping[str, str]],
) -> Iterator[Metric]:
    """Gauges with a sample per partition, if its value is known."""
    for name, help_text, value_of in texts:
        samples = [
            Sample({**labels_of(lag), "topic": lag.topic, "partition": str(lag.partition)}, value)
            for lag in lags
            if (value := value_of(lag)) is not None
        ]
        yield Metric(name, "gauge", help_text, samples)


def _group_gauges(lags: Sequence[PartitionLag], cluster: Mapping[str, str]) -> Iterator[Metric]:
    """Gauges with a sample per group, if one of its partitions has a value."""
    by_group: dict[str, list[PartitionLag]] = {}
    for lag in sorted(lags, key=lambda lag: lag.group or ""):
        by_group.setdefault(lag.group or "", []).append(lag)
    records = {group: [lag.committed_lag for lag in of] for group, of in by_group.items()}
    seconds = {group: [lag.seconds for lag in of] for group, of in by_group.items()}
    merges: tuple[tuple[str, str, Mapping[str, Sequence[Number]], Callable[..., Any]], ...] = (
        ("max_lag", "Largest lag among the group's partitions.", records, max),
        ("max_lag_seconds", "Largest lag in seconds among the group's partitions.", seconds, max),
        ("sum_lag", "Sum of the lags of the group's partitions.", records, sum),
    )
    for name, help_text, values_by_group, merge in merges:
        samples = []
        for group, values in values_by_group.items():
            numbers = [value for value in values if value is not None]
            if numbers:
                samples.append(Sample({**cluster, "group": group}, merge(numbers)))
        yield Metric(f"kafka_consumergroup_group_{name}", "gauge", help_text, samples)
