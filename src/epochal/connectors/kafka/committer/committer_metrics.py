"""Lag and committer metrics in Prometheus' text form. Pure.

Lag is written under the names of two common exporters, so that existing dashboards work:
kafka-lag-exporter (`kafka_consumergroup_group_*`, label `group`) and kafka_exporter
(`kafka_consumergroup_*`, label `consumergroup`). Both sets have the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from epochal.connectors.kafka.committer.lag import PartitionLag
from epochal.metrics.prometheus import Metric, Sample, text_of

if TYPE_CHECKING:
    from epochal.connectors.kafka.cluster_worker import GroupStats

Labelled: TypeAlias = tuple[Mapping[str, str], float | int | None]


def lag_text(lags: Sequence[PartitionLag], cluster_name: str) -> str:
    """The lag of every partition, and of every group."""
    cluster = {"cluster_name": cluster_name}
    grouped = [lag for lag in lags if lag.group is not None]
    return text_of(
        [
            *_lag_exporter(grouped, cluster),
            *_kafka_exporter(grouped),
            _gauge(
                "epochal_query_lag",
                "Records between the query's processed offset and the end of the partition.",
                ((_query_labels(lag, cluster), lag.processed_lag) for lag in lags),
            ),
            _gauge(
                "epochal_query_processed_offset",
                "The next record the query will read.",
                ((_query_labels(lag, cluster), lag.processed) for lag in lags),
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


def _lag_exporter(lags: Sequence[PartitionLag], cluster: Mapping[str, str]) -> list[Metric]:
    prefix = "kafka_consumergroup_group"
    by_group: dict[str, list[PartitionLag]] = {}
    for lag in sorted(lags, key=lambda lag: lag.group or ""):
        by_group.setdefault(lag.group or "", []).append(lag)
    rows = [({**cluster, "group": lag.group or "", **_partition(lag)}, lag) for lag in lags]
    groups = [({**cluster, "group": group}, of_group) for group, of_group in by_group.items()]
    partitions = {(lag.topic, lag.partition): ({**cluster, **_partition(lag)}, lag) for lag in lags}
    return [
        _gauge(f"{prefix}_offset", "Committed offset.", ((to, lag.committed) for to, lag in rows)),
        _gauge(f"{prefix}_lag", "Lag in records.", ((to, lag.committed_lag) for to, lag in rows)),
        _gauge(f"{prefix}_lag_seconds", "Lag in seconds.", ((to, lag.seconds) for to, lag in rows)),
        _gauge(
            f"{prefix}_max_lag",
            "Largest lag among the group's partitions.",
            (
                (to, max(_values(lag.committed_lag for lag in of), default=None))
                for to, of in groups
            ),
        ),
        _gauge(
            f"{prefix}_max_lag_seconds",
            "Largest lag in seconds among the group's partitions.",
            ((to, max(_values(lag.seconds for lag in of), default=None)) for to, of in groups),
        ),
        _gauge(
            f"{prefix}_sum_lag",
            "Sum of the lags of the group's partitions.",
            ((to, _sum(lag.committed_lag for lag in of)) for to, of in groups),
        ),
        _gauge(
            "kafka_partition_latest_offset",
            "End offset of the partition.",
            ((to, lag.latest) for to, lag in partitions.values()),
        ),
        _gauge(
            "kafka_partition_earliest_offset",
            "Offset of the oldest record in the partition.",
            ((to, lag.earliest) for to, lag in partitions.values()),
        ),
    ]


def _kafka_exporter(lags: Sequence[PartitionLag]) -> list[Metric]:
    rows = [({"consumergroup": lag.group or "", **_partition(lag)}, lag) for lag in lags]
    prefix = "kafka_consumergroup"
    return [
        _gauge(
            f"{prefix}_current_offset",
            "Committed offset.",
            ((to, lag.committed) for to, lag in rows),
        ),
        _gauge(f"{prefix}_lag", "Lag in records.", ((to, lag.committed_lag) for to, lag in rows)),
    ]


def _partition(lag: PartitionLag) -> dict[str, str]:
    return {"topic": lag.topic, "partition": str(lag.partition)}


def _query_labels(lag: PartitionLag, cluster: Mapping[str, str]) -> dict[str, str]:
    return {**cluster, "query": lag.query or "", "group": lag.group or "", **_partition(lag)}


def _values(values: Iterable[float | int | None]) -> list[float | int]:
    return [value for value in values if value is not None]


def _sum(values: Iterable[int | None]) -> float | int | None:
    numbers = _values(values)
    return sum(numbers) if numbers else None


def _gauge(name: str, help_text: str, samples: Iterable[Labelled]) -> Metric:
    with_value = [Sample(labels, value) for labels, value in samples if value is not None]
    return Metric(name, "gauge", help_text, with_value)
