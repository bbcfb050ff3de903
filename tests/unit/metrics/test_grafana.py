"""The Grafana dashboard and the alert rules use only metrics that queries export."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from epochal.metrics.query_metrics import METRICS

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
