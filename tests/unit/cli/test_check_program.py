"""What a program that `epochal check` runs gets for its queries, none of which is started."""

from __future__ import annotations

import pytest
from pyspark.sql.streaming import StreamingQuery as SparksQuery

from epochal.cli.run_program import MOST_LOOKS, EndOfProgram, NotStarted
from epochal.continuous.api.query_handle import StreamingQuery as OurQuery


@pytest.mark.parametrize("kind", [SparksQuery, OurQuery])
def test_it_can_be_asked_whatever_a_query_can_be_asked(kind: type) -> None:
    public = {name for name in vars(kind) if not name.startswith("_")}
    assert public - set(dir(NotStarted("a name"))) == set()


@pytest.mark.parametrize(
    "loop",
    [
        "while query.last_progress is None: pass",
        "while query.lastProgress is None: query.awaitTermination(1)",
        "while not query.recent_progress: pass",
        "while query.exception() is None: query.process_all_available()",
        "while not query.status['isTriggerActive']: pass",
    ],
)
def test_a_program_that_waits_for_rows_is_ended(loop: str) -> None:
    guarded = f"try:\n    {loop}\nexcept Exception:\n    pass"
    with pytest.raises(EndOfProgram):
        exec(guarded, {"query": NotStarted("")})


def test_a_program_may_look_at_a_query_that_has_ended() -> None:
    query = NotStarted("sums")
    for _ in range(MOST_LOOKS):
        assert query.await_termination()
    query.stop()
    assert query.name == "sums"
