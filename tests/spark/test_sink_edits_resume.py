"""A query with a file sink goes on after every edit, and its output is that of an undisturbed run.

Each edit that adds or removes batches is made with the `epochal` command and `--sink`, on golden
checkpoints whose query writes files through a sink's log. Then the newest Spark release resumes the
query and reads its output. Both need every entry of the sink's log: a batch without an entry makes
the output unreadable, or stops the next compaction. Edits are repeated so that added batches are
due for a compaction, too.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.everyday import asked_for
from tests.golden.library import Golden, Unpacked, unpack
from tests.spark.releases import RELEASES, Resumed, counted
from tests.spark.test_edits_resume import as_undisturbed, newest, run, write

from epochal.cli.main import main

Edit = Callable[[Unpacked], None]


def edit(place: Unpacked, *words: str, status: int = 0) -> None:
    group, command, *rest = words
    told = ("--sink", str(place.output), "--execute", "--settle-seconds", "0")
    assert main((group, command, str(place.checkpoint), *rest, *told)) == status, words


def a_row(place: Unpacked) -> dict[str, object]:
    file = place.base / "rows.jsonl"
    assert main(("state", "export", str(place.checkpoint), "--to", str(file))) == 0
    row: dict[str, object] = json.loads(file.read_text().splitlines()[0])
    return row


def put(place: Unpacked) -> None:
    row = a_row(place)
    for _ in range(4):
        words = ("--key", json.dumps(row["key"]), "--value", json.dumps(row["value"]))
        edit(place, "state", "put", *words)


def delete(place: Unpacked) -> None:
    row = a_row(place)
    edit(place, "state", "delete", "--key", json.dumps(row["key"]))
    words = ("--key", json.dumps(row["key"]), "--value", json.dumps(row["value"]))
    edit(place, "state", "put", *words)


def repartition(place: Unpacked) -> None:
    for count in (5, 3, 7):
        edit(place, "state", "repartition", "--partitions", str(count))


def convert(place: Unpacked) -> None:
    edit(place, "state", "convert", "--to", "rocksdb")


def evolve(place: Unpacked) -> None:
    edit(place, "state", "evolve", "--rename", "count=how_many")


def lose_a_delta(place: Unpacked) -> None:
    last = newest(place) + 1
    for path in place.checkpoint.glob(f"state/0/1/*{last}.*"):
        path.unlink()


def state_repair(place: Unpacked) -> None:
    lose_a_delta(place)
    edit(place, "state", "repair")


def repair_rewind(place: Unpacked) -> None:
    write(place.checkpoint / f"offsets/{newest(place)}", b"")
    edit(place, "checkpoint", "repair", "--rewind")


def rewind(place: Unpacked) -> None:
    edit(place, "checkpoint", "rewind", "--to-batch", str(newest(place) - 1))


def set_offsets(place: Unpacked) -> None:
    for _ in range(4):
        edit(place, "checkpoint", "set-offsets", "--shift-by", "0")


def repair_hole(place: Unpacked) -> None:
    """Two edits that were told of no sink, then a repair that knows it."""
    for _ in range(2):
        words = ("--shift-by", "0", "--no-file-sink", "--execute", "--settle-seconds", "0")
        assert main(("checkpoint", "set-offsets", str(place.checkpoint), *words)) == 0
    sink = ("--sink", str(place.output))
    assert main(("checkpoint", "verify", str(place.checkpoint), *sink)) == 1
    edit(place, "checkpoint", "repair")


def put_and_undo(place: Unpacked) -> None:
    put(place)
    for _ in range(4):
        words = ("--execute", "--settle-seconds", "0")
        assert main(("checkpoint", "undo", str(place.checkpoint), *words)) == 0


@dataclass(frozen=True)
class Scenario:
    edit: Edit
    case: str

    def __str__(self) -> str:
        return f"{self.edit.__name__}-{self.case}"


OF_STATE: list[Edit] = [put, delete, repartition, convert, evolve, state_repair, put_and_undo]
OF_LOGS: list[Edit] = [set_offsets, repair_rewind, rewind, repair_hole]
SCENARIOS = [
    *(Scenario(each, "file_sink_counts") for each in (*OF_STATE, *OF_LOGS)),
    *(Scenario(each, "file_sink") for each in OF_LOGS),
    *(Scenario(each, "file_sink_cleanup") for each in (set_offsets, repair_hole)),
    *(Scenario(each, "named_sink") for each in (put, set_offsets)),
]


@pytest.fixture(scope="module")
def resumed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[Unpacked, Resumed]]:
    scenarios = asked_for(request, "scenario", SCENARIOS)
    return run(RELEASES[-1], scenarios, tmp_path_factory.mktemp("sinks"))


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_the_output_is_that_of_an_undisturbed_run(
    scenario: Scenario, resumed: dict[str, tuple[Unpacked, Resumed]]
) -> None:
    place, done = resumed[str(scenario)]
    assert done.query_id == place.facts["query_id"]
    assert counted(done.output) == counted(as_undisturbed(place))
    sink = ("--sink", str(place.output))
    assert main(("checkpoint", "verify", str(place.checkpoint), *sink)) == 0


def test_an_edit_that_was_told_of_no_sink_is_found_by_verify(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = unpack(Golden(RELEASES[-1], "file_sink_counts"), tmp_path, relocate=True)
    words = ("--partitions", "3", "--execute", "--settle-seconds", "0")
    assert main(("state", "repartition", str(place.checkpoint), *words)) == 2
    assert "pass the output directory with --sink" in capsys.readouterr().err
    complete = (*words, "--no-file-sink")
    assert main(("state", "repartition", str(place.checkpoint), *complete)) == 0
    sink = ("--sink", str(place.output))
    assert main(("checkpoint", "verify", str(place.checkpoint), *sink)) == 1
    assert "FILE_LOG_HOLE" in capsys.readouterr().out
