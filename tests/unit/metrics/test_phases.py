"""The phases of an epoch, and the spans that tell them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from tests.unit.metrics.runs import RUN, epoch, progress

from epochal.metrics.otel_spans import SpanWriter, find_tracer
from epochal.metrics.run_records import PHASES, phases_of

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
