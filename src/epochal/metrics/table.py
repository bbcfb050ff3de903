"""Every metric of a query: name, kind and meaning. Only metrics in this table are exported.

Spark's own gauges keep their names, with the prefix `spark_streaming_` and `_` instead of `-`, as
Spark's Prometheus servlet writes them. The query is a label, not part of the name.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """One metric. All have the labels `query`, `query_id` and `run_id` in addition to `labels`."""

    name: str
    kind: str
    help: str
    labels: tuple[str, ...] = ()


_S = "spark_streaming_"
_E = "epochal_"

INPUT_RATE = MetricSpec(f"{_S}inputRate_total", "gauge", "Rows that arrive per second.")
PROCESSING_RATE = MetricSpec(
    f"{_S}processingRate_total", "gauge", "Rows processed per second of reading."
)
LATENCY = MetricSpec(
    f"{_S}latency", "gauge", "Milliseconds from an epoch's start to its commit (triggerExecution)."
)
WATERMARK = MetricSpec(
    f"{_S}eventTime_watermark", "gauge", "The watermark, in milliseconds since 1970; 0 if none."
)
STATE_ROWS = MetricSpec(f"{_S}states_rowsTotal", "gauge", "Rows in all state stores.")
STATE_BYTES = MetricSpec(f"{_S}states_usedBytes", "gauge", "Bytes used by all state stores.")

QUERY_UP = MetricSpec(
    f"{_E}query_up", "gauge", "1 while the query is active, 0 after it has ended."
)
QUERY_FAILED = MetricSpec(f"{_E}query_failed", "gauge", "1 if the query ended with an error.")
RESTARTS = MetricSpec(f"{_E}query_restarts_total", "counter", "Restarts of the query's tasks.")
DEGRADED = MetricSpec(
    f"{_E}query_degraded",
    "gauge",
    "1 while the query waits for something that does not work: storage, a source, a sink, slots.",
)
ATTEMPT = MetricSpec(f"{_E}query_attempt", "gauge", "The number of the current attempt.")
START_TIME = MetricSpec(f"{_E}query_start_time_seconds", "gauge", "When the run started.")
EPOCH = MetricSpec(f"{_E}epoch", "gauge", "The newest committed epoch: Spark's batch id.")
EPOCHS = MetricSpec(f"{_E}epochs_committed_total", "counter", "Epochs committed in this run.")
LAST_COMMIT = MetricSpec(
    f"{_E}last_commit_timestamp_seconds", "gauge", "When the newest epoch was committed."
)
ROWS_IN = MetricSpec(f"{_E}rows_in_total", "counter", "Rows read in this run.", ("source",))
ROWS_OUT = MetricSpec(f"{_E}rows_out_total", "counter", "Rows written to the sink in this run.")
DEAD_LETTERS = MetricSpec(
    f"{_E}dead_letters_total", "counter", "Rows that the sink refused in this run."
)
EPOCH_LATENCY = MetricSpec(
    f"{_E}epoch_latency_seconds", "histogram", "From the cut of an epoch to its commit."
)
PHASE_SECONDS = MetricSpec(
    f"{_E}epoch_phase_seconds_total",
    "counter",
    "Time spent in each phase of epochs: cut, state, prepare, log, commit, ack.",
    ("phase",),
)
BEHIND = MetricSpec(
    f"{_E}source_behind_latest",
    "gauge",
    "Data in the source that is not processed yet, in the source's own unit.",
    ("source",),
)
OPERATOR_ROWS = MetricSpec(
    f"{_E}state_operator_rows", "gauge", "Rows in an operator's state.", ("operator",)
)
OPERATOR_UPDATED = MetricSpec(
    f"{_E}state_operator_rows_updated_total",
    "counter",
    "Rows written to an operator's state.",
    ("operator",),
)
OPERATOR_REMOVED = MetricSpec(
    f"{_E}state_operator_rows_removed_total",
    "counter",
    "Rows removed from an operator's state.",
    ("operator",),
)
OPERATOR_LATE = MetricSpec(
    f"{_E}state_operator_rows_dropped_by_watermark_total",
    "counter",
    "Rows that an operator dropped because they came too late.",
    ("operator",),
)
GROUP_LAG = MetricSpec(
    "kafka_consumergroup_group_lag",
    "gauge",
    "Records of a Kafka partition that the query has not committed; the group is the query's name.",
    ("group", "topic", "partition"),
)

METRICS = (
    *(INPUT_RATE, PROCESSING_RATE, LATENCY, WATERMARK, STATE_ROWS, STATE_BYTES),
    *(QUERY_UP, QUERY_FAILED, DEGRADED, RESTARTS, ATTEMPT, START_TIME),
    *(EPOCH, EPOCHS, LAST_COMMIT),
    *(ROWS_IN, ROWS_OUT, DEAD_LETTERS, EPOCH_LATENCY, PHASE_SECONDS, BEHIND),
    *(OPERATOR_ROWS, OPERATOR_UPDATED, OPERATOR_REMOVED, OPERATOR_LATE, GROUP_LAG),
)
