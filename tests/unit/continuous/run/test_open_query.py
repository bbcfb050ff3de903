"""How the plan of an open query is shown."""

from __future__ import annotations

from typing import Any, cast

from tests.unit.continuous.plan.plans import ROWS, TimedJoin, planned, source, state, timed

from epochal.continuous.plan.logical import Node, Union
from epochal.continuous.run.open_query import Opened
from epochal.continuous.run.progress import QueryNote


def explained(tree: Node, *sources: str) -> list[str]:
    missing = cast(Any, None)
    opened = Opened(
        query_id="q",
        run_id="r",
        options=missing,
        files=missing,
        guard=missing,
        sources=(),
        sink=missing,
        plan=planned(tree),
        note=QueryNote("q", "r", None, sources, "console"),
        server=missing,
        settings={},
        state_conf=missing,
    )
    opened.settle_partitions(4)
    return opened.explanation().split("\n")[1:]


def test_a_chain_is_shown_from_its_sources_to_its_sink() -> None:
    assert explained(state(0, timed()), "kafka") == [
        "source 0: kafka -> ObserveEventTime",
        "exchange -> state 0: stateStoreSave by (key), 4 partitions",
        "watermark 0: at, 1000 ms",
        "sink: console",
    ]


def test_in_a_tree_each_line_says_where_it_leads() -> None:
    join = state(1, source(0), source(1), spec=TimedJoin())
    assert explained(Union((state(0, join), source(0)), ROWS), "kafka", "rate") == [
        "source 0: kafka -> exchange to state 1, input 0",
        "source 0: kafka -> sink",
        "source 1: rate -> exchange to state 1, input 1",
        "exchange -> state 1: symmetricHashJoin by (key) and (key), 4 partitions"
        " -> exchange to state 0",
        "exchange -> state 0: stateStoreSave by (key), 4 partitions -> sink",
        "sink: console",
    ]
