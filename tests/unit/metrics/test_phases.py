from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.unit.metrics.runs import epoch

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
