"""How the plan of an open query is shown, and where its epochs end if they are planned."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from tests.unit.continuous.plan.plans import ROWS, TimedJoin, planned, source, state

from epochal.connectors.contract import Source
from epochal.connectors.file.file_source import FileSource, FileSourceOptions
from epochal.connectors.generator import GeneratorSource
from epochal.continuous.plan.logical import Node, Union
from epochal.continuous.run.open_query import Opened
from epochal.continuous.run.progress import QueryNote
from epochal.continuous.run.query_settings import EngineOptions
from epochal.continuous.run.query_spec import QueryDefinition
from epochal.errors import OptionError
from epochal.files.local import LocalFiles


def opened_query(
    tree: Node, *names: str, sources: Sequence[Source] = (), **options: bool
) -> Opened:
    missing = cast(Any, None)
    return Opened(
        query_id="q",
        run_id="r",
        definition=QueryDefinition(tree, missing, EngineOptions(**options)),  # type: ignore[arg-type]
        files=missing,
        guard=missing,
        sources=tuple(sources),
        sink=missing,
        plan=planned(tree),
        note=QueryNote("q", "r", None, names, "console"),
        server=missing,
        settings={},
        state_conf=missing,
    )


def explained(tree: Node, *sources: str) -> list[str]:
    opened = opened_query(tree, *sources)
    opened.settle_partitions(4)
    return opened.explanation().split("\n")[1:]


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


def two_files(home: Path, **bound: int) -> FileSource:
    (home / "in").mkdir()
    for name in "ab":
        (home / "in" / name).write_text("x\n")
    options = FileSourceOptions(path=str(home / "in"), **bound)  # type: ignore[arg-type]
    return FileSource("text", options, None, LocalFiles(home / "ck"), 0, watch=False)


def begun(opened: Opened) -> list[Any]:
    start = [source.initial() for source in opened.sources]
    opened.find_ends(start)
    return start


@pytest.mark.parametrize(
    ("options", "reason"),
    [({}, "another source of the query has a bound"), ({"available_now": True}, "availableNow")],
)
def test_a_source_that_cannot_tell_its_end_cannot_be_planned(
    tmp_path: Path, options: dict[str, bool], reason: str
) -> None:
    endless = GeneratorSource(ROWS, lambda _partition, _start: iter(()))
    sources = (two_files(tmp_path, max_files_per_trigger=1), endless)
    with pytest.raises(OptionError, match=f"Source numbers cannot tell .*{reason}"):
        begun(opened_query(source(0), "files", "numbers", sources=sources, **options))
