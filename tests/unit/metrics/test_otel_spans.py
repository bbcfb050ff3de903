from __future__ import annotations

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from tests.unit.metrics.runs import RUN, epoch, progress

from epochal.metrics.otel_spans import SpanWriter, find_tracer
from epochal.metrics.run_records import PHASES


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
