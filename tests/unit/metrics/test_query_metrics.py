"""Metrics of queries, phases of epochs, their endpoint, and Grafana's use of them."""

from __future__ import annotations

import json
import re
import socket
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client.parser import text_string_to_metric_families
from tests.unit.metrics.runs import RUN, epoch, progress

from epochal.errors import OptionError
from epochal.metrics.otel_spans import SpanWriter, find_tracer
from epochal.metrics.prometheus import Metric, MetricsServer, Sample, merge_metrics, serve, text_of
from epochal.metrics.query_metrics import METRICS, QueryMetrics, behind_latest, kafka_lag
from epochal.metrics.run_records import PHASES, RunEnded, StatusChanged, phases_of
from epochal.testing.server import free_port


def filled() -> QueryMetrics:
    metrics = QueryMetrics()
    metrics.write([RUN, StatusChanged(1, "Processing", -1, 2, 1), epoch(0), epoch(1)])
    metrics.write([epoch(2, committed_ms=10_300 + 4_000), progress(), progress()])
    return metrics


def value(metrics: QueryMetrics, name: str, **labels: str) -> float:
    """The value of the one sample that has these labels, in the text format."""
    (found,) = (
        sample.value
        for family in text_string_to_metric_families(text_of(metrics.collect()))
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )
    return found


LATENCY = "epochal_epoch_latency_seconds"
ROWS = "epochal_state_operator_rows"
VALUES: list[tuple[str, dict[str, str], float]] = [
    ("spark_streaming_inputRate_total", {}, 120.5),
    ("spark_streaming_processingRate_total", {}, 240.0),
    ("spark_streaming_latency", {}, 130),
    ("spark_streaming_eventTime_watermark", {}, 1_704_067_200_500),
    ("spark_streaming_states_rowsTotal", {}, 42),
    ("spark_streaming_states_usedBytes", {}, 0),
    ("epochal_epoch", {}, 2),
    ("epochal_epochs_committed_total", {}, 3),
    ("epochal_rows_in_total", {"source": "rate"}, 30),
    ("epochal_rows_in_total", {"source": "files"}, 6),
    ("epochal_rows_out_total", {}, 21),
    ("epochal_last_commit_timestamp_seconds", {}, 14.3),
    (f"{LATENCY}_bucket", {"le": "0.025"}, 0),
    (f"{LATENCY}_bucket", {"le": "0.05"}, 2),
    (f"{LATENCY}_bucket", {"le": "2.5"}, 2),
    (f"{LATENCY}_bucket", {"le": "5.0"}, 3),
    (f"{LATENCY}_bucket", {"le": "+Inf"}, 3),
    (f"{LATENCY}_count", {}, 3),
    (f"{LATENCY}_sum", {}, 0.03 + 0.03 + 4.0),
    ("epochal_epoch_phase_seconds_total", {"phase": "state"}, 0.018),
    ("epochal_epoch_phase_seconds_total", {"phase": "ack"}, 0.0045),
    ("epochal_source_behind_latest", {"source": "rate"}, 17),
    ("kafka_consumergroup_group_lag", {"topic": "orders", "partition": "0"}, 3),
    ("kafka_consumergroup_group_lag", {"group": "orders", "partition": "1"}, 0),
    (ROWS, {"operator": "aggregate"}, 42),
    (f"{ROWS}_updated_total", {"operator": "aggregate"}, 10),
    (f"{ROWS}_removed_total", {"operator": "aggregate"}, 2),
]


@pytest.mark.parametrize(("name", "labels", "expected"), VALUES)
def test_a_metric_has_its_value(name: str, labels: dict[str, str], expected: float) -> None:
    assert value(filled(), name, **labels) == pytest.approx(expected)


def test_every_sample_names_its_query() -> None:
    for family in text_string_to_metric_families(text_of(filled().collect())):
        for sample in family.samples:
            assert sample.labels["query"] == "orders"
            assert sample.labels["query_id"] == RUN.query_id
            assert sample.labels["run_id"] == RUN.run_id


def test_a_latency_beyond_every_bucket_is_counted_too() -> None:
    metrics = QueryMetrics()
    metrics.write([RUN, epoch(0, committed_ms=10_100 + 60_000)])
    assert value(metrics, "epochal_epoch_latency_seconds_bucket", le="30.0") == 0
    assert value(metrics, "epochal_epoch_latency_seconds_bucket", le="+Inf") == 1


def test_offsets_that_are_not_kafkas_give_no_lag() -> None:
    assert kafka_lag({"endOffset": 5, "latestOffset": 7}) == {}
    assert kafka_lag({"endOffset": {"logOffset": 5}, "latestOffset": {"logOffset": 7}}) == {}
    assert behind_latest({"endOffset": None}) is None
    source = {"endOffset": {"t": {"0": 1}}, "latestOffset": {"t": {"0": 4, "1": 9}}, "metrics": {}}
    assert behind_latest(source) == 3


def test_the_end_of_a_query_is_told_and_its_rates_are_zero() -> None:
    metrics = filled()
    assert value(metrics, "epochal_query_up") == 1
    assert value(metrics, "epochal_query_failed") == 0
    assert value(metrics, "epochal_query_restarts_total") == 1
    metrics.write([RunEnded(9, "it broke")])
    assert value(metrics, "epochal_query_up") == 0
    assert value(metrics, "epochal_query_failed") == 1
    assert value(metrics, "spark_streaming_inputRate_total") == 0


def test_every_metric_of_the_table_is_exported_with_its_labels_and_no_other() -> None:
    exported = {metric.name: metric for metric in filled().collect()}
    assert set(exported) == {spec.name for spec in METRICS}
    common = {"query", "query_id", "run_id", "le"}
    for spec in METRICS:
        metric = exported[spec.name]
        assert metric.samples, spec.name
        assert metric.kind == spec.kind
        assert {label for sample in metric.samples for label in sample.labels} - common == set(
            spec.labels
        )


def test_a_query_that_has_not_told_who_it_is_has_no_metrics() -> None:
    assert QueryMetrics().collect() == []


def test_label_values_may_hold_anything() -> None:
    text = text_of([Metric("m", "gauge", "h", [Sample({"query": 'a"b\\c\nd'}, 1)])])
    (family,) = text_string_to_metric_families(text)
    assert family.samples[0].labels == {"query": 'a"b\\c\nd'}


def test_metrics_of_several_queries_stand_together_under_one_name() -> None:
    one = Metric("m", "gauge", "h", [Sample({"query": "a"}, 1)])
    two = Metric("m", "gauge", "h", [Sample({"query": "b"}, 2)])
    assert text_of(merge_metrics([one, two])).count("# TYPE") == 1


def test_every_metric_is_described_on_its_page() -> None:
    page = (Path(__file__).parents[3] / "docs" / "metrics.md").read_text()
    described = set(re.findall(r"^\| `(\w+)`", page, re.M))
    assert {spec.name for spec in METRICS} <= described


def test_a_degraded_query_shows_until_its_sources_can_be_reached() -> None:
    metrics = filled()
    assert value(metrics, "epochal_query_degraded") == 0
    metrics.write([StatusChanged(1, "Processing", -1, 2, 1, "Pub/Sub is away")])
    assert value(metrics, "epochal_query_degraded") == 1
    metrics.write([StatusChanged(1, "Processing", -1, 2, 1)])
    assert value(metrics, "epochal_query_degraded") == 0


def scraped(port: int, path: str = "/metrics") -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        text: str = answer.read().decode()
        return text


def of(name: str) -> QueryMetrics:
    import msgspec

    metrics = QueryMetrics()
    metrics.write([msgspec.structs.replace(RUN, name=name), epoch(0)])
    return metrics


def test_queries_that_name_one_port_share_one_endpoint() -> None:
    port = free_port()
    ends = [serve(of(name).collect, port) for name in ("one", "two")]
    text = scraped(port)
    assert 'epochal_query_up{query="one"' in text
    assert 'epochal_query_up{query="two"' in text
    assert text.count("# TYPE epochal_query_up") == 1
    for end in ends:
        end()
    assert 'epochal_query_up{query="one"' in scraped(port), "the end of a query is to be seen"


def test_only_metrics_are_served() -> None:
    server = MetricsServer(0)
    try:
        for path in ("/", "/../etc/passwd", "/metricsx"):
            with pytest.raises(urllib.error.HTTPError, match="404"):
                scraped(server.port, path)
        request = urllib.request.Request(f"http://127.0.0.1:{server.port}/metrics", b"x")
        with pytest.raises(urllib.error.HTTPError, match="501"):
            urllib.request.urlopen(request, timeout=10)
    finally:
        server.close()


def test_the_endpoint_is_on_loopback_unless_told_otherwise() -> None:
    server = MetricsServer(0)
    try:
        assert server.address == ("127.0.0.1", server.port)
    finally:
        server.close()


def test_a_port_that_is_taken_is_an_error_that_names_it() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(OptionError, match=f"127.0.0.1:{port}"):
            serve(of("late").collect, port)


LENGTH = st.floats(-50, 500)


def test_an_epoch_is_divided_into_the_steps_of_the_protocol() -> None:
    found = [(phase.name, phase.start_ms, phase.took_ms) for phase in phases_of(epoch(0))]
    assert found == [
        ("cut", 10_100, 5),
        ("state", 10_105, 6),
        ("prepare", 10_111, 4),
        ("log", 10_115, 3),
        ("commit", 10_118, 12),
        ("ack", 10_130, 1.5),
    ]


def test_an_acknowledgement_that_is_not_known_is_left_out() -> None:
    assert [phase.name for phase in phases_of(epoch(0, ack_ms=None))] == list(PHASES[:-1])


@given(prepare=LENGTH, state=LENGTH, stage=LENGTH, queue=LENGTH, wal=LENGTH, total=LENGTH)
def test_phases_follow_each_other_from_the_cut_to_the_commit_whatever_clocks_say(
    prepare: float, state: float, stage: float, queue: float, wal: float, total: float
) -> None:
    given_epoch = epoch(
        0,
        prepare_ms=prepare,
        state_ms=state,
        stage_ms=stage,
        queue_ms=queue,
        wal_ms=wal,
        committed_ms=10_100 + round(total),
        ack_ms=None,
    )
    phases = phases_of(given_epoch)
    assert all(phase.took_ms >= 0 for phase in phases)
    assert [phase.start_ms for phase in phases[1:]] == [phase.end_ms for phase in phases[:-1]]
    assert abs(phases[-1].end_ms - max(10_100, 10_100 + round(total), 10_100 + prepare)) < 1e-6


def test_an_epoch_is_a_span_with_its_phases_below() -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    SpanWriter(provider.get_tracer("epochal")).write([RUN, epoch(3), progress(), epoch(4)])
    spans = exporter.get_finished_spans()
    assert [span.name for span in spans] == [*PHASES, "epoch"] * 2
    *phases, whole = spans[:7]
    assert whole.parent is None
    assert whole.context is not None
    assert {phase.parent.span_id for phase in phases if phase.parent} == {whole.context.span_id}
    assert (whole.start_time, whole.end_time) == (10_300_000_000, 10_431_500_000)
    assert [phase.start_time for phase in phases][1:] == [phase.end_time for phase in phases][:-1]
    about = dict(whole.attributes or {})
    assert about["epochal.query.id"] == RUN.query_id
    assert about["epochal.run.id"] == RUN.run_id
    assert (about["epochal.epoch"], about["epochal.rows_in"]) == (3, 12)
    assert spans[13].context is not None
    assert spans[13].context.trace_id != whole.context.trace_id, "each epoch is a trace of its own"


def test_without_a_configured_provider_nothing_is_traced() -> None:
    assert find_tracer() is None


GRAFANA = Path(__file__).parents[3] / "docs" / "grafana"
SUFFIXES = ("_bucket", "_sum", "_count")


def known() -> set[str]:
    names = {spec.name for spec in METRICS}
    histograms = {spec.name for spec in METRICS if spec.kind == "histogram"}
    return names | {f"{name}{suffix}" for name in histograms for suffix in SUFFIXES}


def named_in(expression: str) -> set[str]:
    return set(re.findall(r"\b(?:epochal|spark_streaming|kafka)_\w+", expression))


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((GRAFANA / "epochal.json").read_text())["panels"]
    return found


def alerts() -> list[dict[str, str]]:
    """The rules, parsed with the few forms of YAML that the file uses."""
    found: list[dict[str, str]] = []
    for line in (GRAFANA / "alerts.yaml").read_text().splitlines():
        match = re.match(r"\s*(?:- )?(alert|expr|summary|runbook|for): (.*)", line)
        if match and match[1] == "alert":
            found.append({})
        if match:
            found[-1][match[1]] = match[2]
    return found


@pytest.mark.parametrize("panel", panels(), ids=lambda panel: str(panel["title"]))
def test_every_metric_of_a_panel_exists(panel: dict[str, Any]) -> None:
    named = set().union(*(named_in(target["expr"]) for target in panel["targets"]))
    assert named
    assert named <= known()


def test_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in panels():
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not cells & taken
        assert all(x < 24 for x, _ in cells)
        taken |= cells


@pytest.mark.parametrize("alert", alerts(), ids=lambda alert: alert["alert"])
def test_every_alert_asks_for_metrics_that_exist_and_says_what_to_do(alert: dict[str, str]) -> None:
    assert named_in(alert["expr"])
    assert named_in(alert["expr"]) <= known()
    assert named_in(alert["runbook"]) <= known()
    assert len(alert["runbook"]) > 60
    assert alert["summary"]


def test_no_metric_is_missing_from_the_dashboard_without_a_reason() -> None:
    shown = {
        name
        for panel in panels()
        for target in panel["targets"]
        for name in named_in(target["expr"])
    }
    left_out = {spec.name for spec in METRICS if not any(n.startswith(spec.name) for n in shown)}
    assert left_out == {
        "spark_streaming_inputRate_total",  # the counter of rows shows the same, more precisely
        "spark_streaming_processingRate_total",
        "spark_streaming_latency",  # the histogram shows more
        "spark_streaming_states_usedBytes",
        "epochal_query_failed",  # used by an alert
        "epochal_query_degraded",  # used by an alert
        "epochal_query_attempt",
        "epochal_query_start_time_seconds",
    }
