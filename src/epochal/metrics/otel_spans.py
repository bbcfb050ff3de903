"""Epochs as OpenTelemetry spans: one per epoch, with one child span per phase.

Spans are created after the epoch is committed, with the times that were measured. Without the
OpenTelemetry API, or without a configured tracer provider, there are no spans and no cost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from epochal.metrics.run_records import EpochDone, Record, RunStarted, phases_of

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

NS_PER_MS = 1_000_000


def find_tracer() -> Tracer | None:
    """The tracer of this process; None if no tracer provider is configured."""
    try:
        from opentelemetry import trace
    except ImportError:
        return None
    provider = trace.get_tracer_provider()
    if isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider):
        return None
    return provider.get_tracer("epochal")


class SpanWriter:
    """Writes the spans of one run."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._run_attributes: dict[str, Any] = {}

    def write(self, records: list[Record]) -> None:
        """Create spans for the epochs among these records."""
        for record in records:
            match record:
                case RunStarted():
                    query = {"query.id": record.query_id, "query.name": record.name or ""}
                    self._run_attributes = _attributes({**query, "run.id": record.run_id})
                case EpochDone():
                    self._trace(record)

    def close(self) -> None:
        """Do nothing: there is nothing to release."""

    def _trace(self, epoch: EpochDone) -> None:
        from opentelemetry.context import Context
        from opentelemetry.trace import set_span_in_context

        numbers = _attributes({"epoch": epoch.epoch, "attempt": epoch.attempt})
        rows = _attributes({"rows_in": sum(epoch.rows_in), "rows_out": epoch.rows_out})
        attributes, start = {**self._run_attributes, **numbers}, self._tracer.start_span
        phases, began_ns = phases_of(epoch), epoch.started_ms * NS_PER_MS
        span = start("epoch", Context(), start_time=began_ns, attributes={**attributes, **rows})
        parent = set_span_in_context(span, Context())
        for phase in phases:
            start_ns = round(phase.start_ms * NS_PER_MS)
            child = start(phase.name, parent, start_time=start_ns, attributes=attributes)
            child.end(round(phase.end_ms * NS_PER_MS))
        span.end(max(round(phases[-1].end_ms * NS_PER_MS), epoch.committed_ms * NS_PER_MS))


def _attributes(named: dict[str, Any]) -> dict[str, Any]:
    """Add this package's prefix to the names of span attributes."""
    return {f"epochal.{name}": value for name, value in named.items()}
