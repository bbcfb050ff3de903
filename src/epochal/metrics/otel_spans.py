"""Epochs as OpenTelemetry spans: one per epoch, and one below it per phase.

Spans are made when an epoch is history, with the times it had. Without the OpenTelemetry API, or
where nobody has configured a tracer provider, there are none and nothing is paid for them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from epochal.metrics.phases import phases_of
from epochal.metrics.run_records import EpochDone, Record, RunStarted

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

NANOSECONDS = 1_000_000
"""In a millisecond."""


def find_tracer() -> Tracer | None:
    """The tracer of this process; None if traces go nowhere."""
    try:
        from opentelemetry import trace
    except ImportError:
        return None
    provider = trace.get_tracer_provider()
    if isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider):
        return None
    return provider.get_tracer("epochal")


class SpanWriter:
    """Makes the spans of one run."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._about: dict[str, Any] = {}

    def write(self, records: list[Record]) -> None:
        """Take in records, oldest first."""
        for record in records:
            match record:
                case RunStarted():
                    self._about = _attributes(
                        {
                            "query.id": record.query_id,
                            "query.name": record.name or "",
                            "run.id": record.run_id,
                        }
                    )
                case EpochDone():
                    self._trace(record)

    def close(self) -> None:
        """Nothing is held."""

    def _trace(self, epoch: EpochDone) -> None:
        from opentelemetry.context import Context
        from opentelemetry.trace import set_span_in_context

        about = {
            **self._about,
            **_attributes({"epoch": epoch.epoch, "attempt": epoch.attempt}),
        }
        phases = phases_of(epoch)
        span = self._tracer.start_span(
            "epoch",
            context=Context(),
            start_time=epoch.started_ms * NANOSECONDS,
            attributes={
                **about,
                **_attributes({"rows_in": sum(epoch.rows_in), "rows_out": epoch.rows_out}),
            },
        )
        inside = set_span_in_context(span, Context())
        for phase in phases:
            below = self._tracer.start_span(
                phase.name,
                context=inside,
                start_time=round(phase.start_ms * NANOSECONDS),
                attributes=about,
            )
            below.end(round(phase.end_ms * NANOSECONDS))
        span.end(max(round(phases[-1].end_ms * NANOSECONDS), epoch.committed_ms * NANOSECONDS))


def _attributes(named: dict[str, Any]) -> dict[str, Any]:
    """Attributes of a span under this package's prefix."""
    return {f"epochal.{name}": value for name, value in named.items()}
