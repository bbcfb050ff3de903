"""Lag and committer metrics in Prometheus' text form. Pure.

Lag is written under the names of two common exporters, so that existing dashboards work:
kafka-lag-exporter (`kafka_consumergroup_group_*`, label `group`) and kafka_exporter
(`kafka_consumergroup_*`, label `consumergroup`). Both sets have the same numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from epochal.connectors.kafka.committer.lag import PartitionLag
from epochal.metrics.prometheus import CONTENT_TYPE, Metric, Sample, text_of

if TYPE_CHECKING:
    from epochal.connectors.kafka.cluster_worker import GroupStats

__all__ = ["CONTENT_TYPE", "committer_text", "lag_text"]


def lag_text(lags: Sequence[PartitionLag], cluster_name: str) -> str:
    """The lag of every partition, and of every group."""
    return text_of(_lag_metrics(lags, cluster_name))


def committer_text(
    groups: Mapping[tuple[str, str], GroupStats], *, pending: int, dropped: int, errors: int
) -> str:
    """The counters of an offset committer."""

    def each(value: str) -> list[Sample]:
        return [
            Sample({"bootstrap_servers": servers, "group": group}, getattr(stats, value))
            for (servers, group), stats in groups.items()
        ]

    prefix = "epochal_kafka_committer_"
    metrics = [
        Metric(f"{prefix}commits_total", "counter", "Commits to the group.", each("commits")),
        Metric(
            f"{prefix}failures_total", "counter", "Commit attempts that failed.", each("failures")
        ),
        Metric(
            f"{prefix}refusals_total", "counter", "Commits that were refused.", each("refusals")
        ),
        Metric(
            f"{prefix}skipped_backwards_total",
            "counter",
            "Commits that skipped a partition because the group was ahead.",
            each("skipped_backwards"),
        ),
        Metric(
            f"{prefix}healthy",
            "gauge",
            "1 if the last commit attempt succeeded.",
            [
                Sample({"bootstrap_servers": servers, "group": group}, int(not stats.last_error))
                for (servers, group), stats in groups.items()
            ],
        ),
        Metric(
            f"{prefix}last_commit_timestamp_seconds",
            "gauge",
            "Time of the last commit to the group.",
            [
                Sample({"bootstrap_servers": servers, "group": group}, stats.last_commit_ms / 1000)
                for (servers, group), stats in groups.items()
            ],
        ),
        Metric(
            f"{prefix}pending_offsets", "gauge", "Offsets not committed yet.", [Sample({}, pending)]
        ),
        Metric(
            f"{prefix}dropped_events_total",
            "counter",
            "Events dropped because too many were waiting.",
            [Sample({}, dropped)],
        ),
        Metric(
            f"{prefix}errors_total",
            "counter",
            "Internal errors of the committer.",
            [Sample({}, errors)],
        ),
    ]
    return text_of(metrics)


def _lag_metrics(lags: Sequence[PartitionLag], cluster: str) -> list[Metric]:
    grouped = [lag for lag in lags if lag.group is not None]
    return [
        *_lag_exporter(grouped, cluster),
        *_kafka_exporter(grouped),
        _metric(
            "epochal_query_lag",
            "Records between the query's processed offset and the end of the partition.",
            ((_query_labels(lag, cluster), lag.processed_lag) for lag in lags),
        ),
        _metric(
            "epochal_query_processed_offset",
            "The next record the query will read.",
            ((_query_labels(lag, cluster), lag.processed) for lag in lags),
        ),
    ]


def _lag_exporter(lags: Sequence[PartitionLag], cluster: str) -> list[Metric]:
    def labels(lag: PartitionLag) -> dict[str, str]:
        return {
            "cluster_name": cluster,
            "group": lag.group or "",
            "topic": lag.topic,
            "partition": str(lag.partition),
        }

    def partition_labels(lag: PartitionLag) -> dict[str, str]:
        return {"cluster_name": cluster, "topic": lag.topic, "partition": str(lag.partition)}

    prefix = "kafka_consumergroup_group"
    groups = sorted({lag.group or "" for lag in lags})
    sums = [(g, [lag for lag in lags if lag.group == g]) for g in groups]
    return [
        _metric(
            f"{prefix}_offset", "Committed offset.", ((labels(lag), lag.committed) for lag in lags)
        ),
        _metric(
            f"{prefix}_lag", "Lag in records.", ((labels(lag), lag.committed_lag) for lag in lags)
        ),
        _metric(
            f"{prefix}_lag_seconds", "Lag in seconds.", ((labels(lag), lag.seconds) for lag in lags)
        ),
        _metric(
            f"{prefix}_max_lag",
            "Largest lag among the group's partitions.",
            (
                (_group_labels(g, cluster), _max(p.committed_lag for p in parts))
                for g, parts in sums
            ),
        ),
        _metric(
            f"{prefix}_max_lag_seconds",
            "Largest lag in seconds among the group's partitions.",
            ((_group_labels(g, cluster), _max(p.seconds for p in parts)) for g, parts in sums),
        ),
        _metric(
            f"{prefix}_sum_lag",
            "Sum of the lags of the group's partitions.",
            (
                (_group_labels(g, cluster), _sum(p.committed_lag for p in parts))
                for g, parts in sums
            ),
        ),
        _metric(
            "kafka_partition_latest_offset",
            "End offset of the partition.",
            {(p.topic, p.partition): (partition_labels(p), p.latest) for p in lags}.values(),
        ),
        _metric(
            "kafka_partition_earliest_offset",
            "Offset of the oldest record in the partition.",
            {(p.topic, p.partition): (partition_labels(p), p.earliest) for p in lags}.values(),
        ),
    ]


def _kafka_exporter(lags: Sequence[PartitionLag]) -> list[Metric]:
    def labels(lag: PartitionLag) -> dict[str, str]:
        return {
            "consumergroup": lag.group or "",
            "topic": lag.topic,
            "partition": str(lag.partition),
        }

    return [
        _metric(
            "kafka_consumergroup_current_offset",
            "Committed offset.",
            ((labels(lag), lag.committed) for lag in lags),
        ),
        _metric(
            "kafka_consumergroup_lag",
            "Lag in records.",
            ((labels(lag), lag.committed_lag) for lag in lags),
        ),
    ]


def _query_labels(lag: PartitionLag, cluster: str) -> dict[str, str]:
    return {
        "cluster_name": cluster,
        "query": lag.query or "",
        "group": lag.group or "",
        "topic": lag.topic,
        "partition": str(lag.partition),
    }


def _group_labels(group: str, cluster: str) -> dict[str, str]:
    return {"cluster_name": cluster, "group": group}


def _max(values: Iterable[float | int | None]) -> float | int | None:
    return max((value for value in values if value is not None), default=None)


def _sum(values: Iterable[int | None]) -> int | None:
    numbers = [value for value in values if value is not None]
    return sum(numbers) if numbers else None


def _metric(
    name: str, help: str, samples: Iterable[tuple[Mapping[str, str], float | int | None]]
) -> Metric:
    samples_with_value = [Sample(labels, value) for labels, value in samples if value is not None]
    return Metric(name, "gauge", help, samples_with_value)
