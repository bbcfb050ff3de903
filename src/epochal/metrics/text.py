"""Prometheus' text form: small, stable, and written without a client library. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Sample:
    """One number under one name."""

    labels: Mapping[str, str]
    value: float | int
    suffix: str = ""
    """`_bucket`, `_sum` and `_count` of a histogram."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A name, what it means, and its samples."""

    name: str
    kind: str
    help: str
    samples: Sequence[Sample]


def merged(metrics: Iterable[Metric]) -> list[Metric]:
    """Metrics of one name as one, as the text form demands; in the order of their first."""
    found: dict[str, Metric] = {}
    for metric in metrics:
        known = found.get(metric.name)
        samples = [*known.samples, *metric.samples] if known else metric.samples
        found[metric.name] = Metric(metric.name, metric.kind, metric.help, samples)
    return list(found.values())


def text_of(metrics: Iterable[Metric]) -> str:
    """The text; a metric without samples is left out."""
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
