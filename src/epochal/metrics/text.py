"""Writes metrics in Prometheus' text format, without a client library. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Sample:
    """One value of a metric, with its labels."""

    labels: Mapping[str, str]
    value: float | int
    suffix: str = ""
    """`_bucket`, `_sum` or `_count` for a histogram, else empty."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric with its samples."""

    name: str
    kind: str
    help: str
    samples: Sequence[Sample]


def merged(metrics: Iterable[Metric]) -> list[Metric]:
    """Merge metrics of the same name, as the text format requires."""
    found: dict[str, Metric] = {}
    for metric in metrics:
        known = found.get(metric.name)
        samples = [*known.samples, *metric.samples] if known else metric.samples
        found[metric.name] = Metric(metric.name, metric.kind, metric.help, samples)
    return list(found.values())


def text_of(metrics: Iterable[Metric]) -> str:
    """Format metrics as text; those without samples are omitted."""
    lines: list[str] = []
    for metric in metrics:
        if not metric.samples:
            continue
        lines.append(f"# HELP {metric.name} {metric.help}")
        lines.append(f"# TYPE {metric.name} {metric.kind}")
        for sample in metric.samples:
            labels = ",".join(f'{k}="{_escaped(v)}"' for k, v in sample.labels.items())
            name = metric.name + sample.suffix
            lines.append(f"{name}{f'{{{labels}}}' if labels else ''} {sample.value}")
    return "".join(f"{line}\n" for line in lines)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
