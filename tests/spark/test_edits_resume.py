"""Spark goes on from a checkpoint that we edited, and ends with the output of an undisturbed run.

Each edit starts from a golden checkpoint, is made with the `epochal` command, and is then handed to
the Spark release that wrote it, which reads the rest of the input. The answers must be equal, not
contained: a row too many is as wrong as one too few. Where an edit reads something again on
purpose, the rows expected twice are spelled out. Snapshot repair is off: nothing is passed over.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from tests.everyday import asked_for
from tests.golden.catalogue import CASES
from tests.golden.library import Golden, Unpacked, unpack
from tests.golden.random_damage import drop_rows_after
from tests.golden.shape import version
from tests.no_file_sink import with_no_sink
from tests.spark.releases import NO_REPAIR, RELEASES, ReleaseError, Resumed, counted, resume

from epochal.checkpoint import Checkpoint
from epochal.checkpoint.entries import OFFSET_FORMAT, OffsetEntry
from epochal.cli.main import main
from epochal.files.local import LocalFiles
from epochal.testing.files import Crash, FaultyFiles, crash_after
from epochal.tools.edit.edit_journal import Journal
from epochal.tools.edit.rewind import plan_rewind
from epochal.tools.edit.survey import survey

Rows = list[dict[str, Any]]
Edit = Callable[[Unpacked], Unpacked | None]

ROWS_PER_FILE = 14


def checkpoint(command: str, place: Unpacked, *words: str, status: int = 0) -> None:
    arguments = (command, str(place.checkpoint), *words, "--execute", "--settle-seconds", "0")
    assert main(("checkpoint", *with_no_sink(arguments))) == status, arguments


def newest(place: Unpacked) -> int:
    return max(Checkpoint(str(place.checkpoint)).commits.batch_ids())


def rewind(to_batch: int) -> Edit:
    def edit(place: Unpacked) -> None:
        checkpoint("rewind", place, "--to-batch", str(to_batch))
        drop_rows_after(place, to_batch)

    return edit


def rewind_with_sink(to_batch: int) -> Edit:
    return lambda place: checkpoint(
        "rewind", place, "--to-batch", str(to_batch), "--sink", str(place.output)
    )


def rewind_and_undo(place: Unpacked) -> None:
    checkpoint("rewind", place, "--to-batch", "2")
    checkpoint("undo", place)


def stay(place: Unpacked) -> None:
    for _ in range(3):
        checkpoint("set-offsets", place, "--shift-by", "0")


def stay_with_sink(place: Unpacked) -> None:
    for _ in range(4):
        checkpoint("set-offsets", place, "--shift-by", "0", "--sink", str(place.output))


def go_back_two_files(place: Unpacked) -> None:
    checkpoint("set-offsets", place, "--shift-by", "-2", "--sink", str(place.output))


def start_over(place: Unpacked) -> None:
    checkpoint("set-offsets", place, "--to-earliest", "--sink", str(place.output))


def move(place: Unpacked) -> None:
    """Move the input and the output, copy the checkpoint after them, and all of it back again."""
    homes = {path.resolve(): place.base / f"{path.name}-2" for path in (place.input, place.output)}
    away = place.base / "checkpoint-2"
    _move(place.checkpoint, away, homes)
    logged = b"".join(path.read_bytes() for path in away.glob("sources/*/[0-9]*"))
    assert f"{homes[place.input.resolve()]}/".encode() in logged
    assert f"{place.input.resolve()}/".encode() not in logged
    shutil.rmtree(place.checkpoint)
    _move(away, place.checkpoint, {new: old for old, new in homes.items()})


def _move(origin: Path, target: Path, homes: dict[Path, Path]) -> None:
    mapped = [f"--map={old}={new.resolve()}" for old, new in homes.items()]
    for old, new in homes.items():
        old.rename(new)
    sinks = [new for new in homes.values() if (new / "_spark_metadata").is_dir()]
    options = [*mapped, *(f"--sink={sink}" for sink in sinks), "--execute", "--settle-seconds", "0"]
    assert main(("checkpoint", "copy", str(origin), str(target), *options)) == 0


def migrate(place: Unpacked) -> None:
    checkpoint("migrate-offsets", place, "--to", "v2")
    assert {entry.version for entry in offsets(place).values()} == {2}


def migrate_and_name(place: Unpacked) -> Unpacked:
    """Take a checkpoint back to version 1, then do what Spark itself refuses to do."""
    for batch_id, entry in offsets(place).items():
        old = OffsetEntry(
            1,
            tuple(entry.by_source.get(source) for source in ("0", "1")),
            entry.watermark_ms,
            entry.timestamp_ms,
            entry.conf,
        )
        path = place.checkpoint / "offsets" / str(batch_id)
        path.write_bytes(OFFSET_FORMAT.serialize(old))
        path.with_name(f".{batch_id}.crc").unlink(missing_ok=True)
    checkpoint("migrate-offsets", place, "--name", "0=morning", "--name", "1=evening")
    return replace(place, golden=Golden(place.golden.release, "named_sources"))


def offsets(place: Unpacked) -> dict[int, OffsetEntry]:
    return dict(Checkpoint(str(place.checkpoint)).offsets.get_range())


def write(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)


def as_undisturbed(place: Unpacked) -> Rows:
    found: Rows = place.facts["undisturbed"]["output"]
    return found


def twice(files: int) -> Callable[[Unpacked], Rows]:
    """The undisturbed output, and once more the rows of the last files that had been read."""

    def expected(place: Unpacked) -> Rows:
        read = sorted(place.facts["output"], key=lambda row: int(row["id"]))
        return as_undisturbed(place) + read[-files * ROWS_PER_FILE :]

    return expected


def edit_with_sink(place: Unpacked, *words: str, status: int = 0) -> None:
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
        edit_with_sink(place, "state", "put", *words)


def delete(place: Unpacked) -> None:
    row = a_row(place)
    edit_with_sink(place, "state", "delete", "--key", json.dumps(row["key"]))
    words = ("--key", json.dumps(row["key"]), "--value", json.dumps(row["value"]))
    edit_with_sink(place, "state", "put", *words)


def repartition(place: Unpacked) -> None:
    for count in (5, 3, 7):
        edit_with_sink(place, "state", "repartition", "--partitions", str(count))


def convert(place: Unpacked) -> None:
    edit_with_sink(place, "state", "convert", "--to", "rocksdb")


def evolve(place: Unpacked) -> None:
    edit_with_sink(place, "state", "evolve", "--rename", "count=how_many")


def lose_a_delta(place: Unpacked) -> None:
    last = newest(place) + 1
    for path in place.checkpoint.glob(f"state/0/1/*{last}.*"):
        path.unlink()


def state_repair(place: Unpacked) -> None:
    lose_a_delta(place)
    edit_with_sink(place, "state", "repair")


def repair_rewind(place: Unpacked) -> None:
    write(place.checkpoint / f"offsets/{newest(place)}", b"")
    edit_with_sink(place, "checkpoint", "repair", "--rewind")


def rewind_last(place: Unpacked) -> None:
    edit_with_sink(place, "checkpoint", "rewind", "--to-batch", str(newest(place) - 1))


def set_offsets(place: Unpacked) -> None:
    for _ in range(4):
        edit_with_sink(place, "checkpoint", "set-offsets", "--shift-by", "0")


def repair_hole(place: Unpacked) -> None:
    """Two edits that were told of no sink, then a repair that knows it."""
    for _ in range(2):
        words = ("--shift-by", "0", "--no-file-sink", "--execute", "--settle-seconds", "0")
        assert main(("checkpoint", "set-offsets", str(place.checkpoint), *words)) == 0
    sink = ("--sink", str(place.output))
    assert main(("checkpoint", "verify", str(place.checkpoint), *sink)) == 1
    edit_with_sink(place, "checkpoint", "repair")


def put_and_undo(place: Unpacked) -> None:
    put(place)
    for _ in range(4):
        words = ("--sink", str(place.output), "--execute", "--settle-seconds", "0")
        assert main(("checkpoint", "undo", str(place.checkpoint), *words)) == 0


@dataclass(frozen=True)
class Scenario:
    name: str
    case: str
    edit: Edit
    expected: Callable[[Unpacked], Rows] = as_undisturbed
    since: str = "3.5"

    def __str__(self) -> str:
        return f"{self.name}-{self.case}"


EVERYDAY = [
    Scenario("rewind", "windowed", rewind(4)),
    Scenario("rewind", "join_outer", rewind(4)),
    Scenario("rewind", "join_rocksdb_ids", rewind(4)),
    Scenario("rewind", "interrupted", rewind(8)),
    Scenario("rewind-with-sink", "file_sink_counts", rewind_with_sink(4)),
    Scenario("rewind-and-undo", "windowed", rewind_and_undo),
    Scenario("set-offsets", "join_outer", stay),
    Scenario("set-offsets-with-sink", "file_sink", stay_with_sink),
    Scenario("set-offsets-back", "file_sink", go_back_two_files, twice(2)),
    Scenario("copy", "file_sink", move),
    Scenario("migrate", "several_sources", migrate, since="4.2"),
    Scenario("migrate-and-name", "offsets_v2", migrate_and_name, since="4.2"),
]

OF_STATE: list[Edit] = [put, delete, repartition, convert, evolve, state_repair, put_and_undo]
OF_LOGS: list[Edit] = [set_offsets, repair_rewind, rewind_last, repair_hole]
CASES_OF_EDITS = {
    "file_sink_counts": (*OF_STATE, *OF_LOGS),
    "file_sink": OF_LOGS,
    "file_sink_cleanup": (set_offsets, repair_hole),
    "named_sink": (put, set_offsets),
}
OF_SINKS = [
    Scenario(edit.__name__, case, edit) for case, edits in CASES_OF_EDITS.items() for edit in edits
]
"""Edits that add or remove batches under a file sink. Spark needs every entry of the sink's log: a
batch without one makes the output unreadable, or stops the next compaction. Edits are repeated so
that added batches are due for a compaction, too."""

SHAPES = (
    *("dedup", "dedup_watermark", "session", "chained", "codec_zstd", "row_checksum"),
    *("join_inner", "join_rocksdb", "join_v3", "join_v4", "rocksdb_zip", "rocksdb_session"),
    *("rocksdb_v2", "rocksdb_v2_zip", "transform", "transform_ids"),
)

MORE = [
    Scenario("rewind", "several_sources", rewind(4)),
    Scenario("rewind", "rocksdb_changelog", rewind(4)),
    Scenario("rewind-with-sink", "file_sink", rewind_with_sink(4)),
    Scenario("set-offsets", "windowed", stay),
    Scenario("set-offsets", "join_rocksdb_ids", stay),
    Scenario("copy", "join_v3", move),
    *(Scenario("rewind", case, rewind(4)) for case in SHAPES),
    *(Scenario("set-offsets", case, stay) for case in SHAPES),
    Scenario("rewind", "interrupted_early", rewind(8)),
    Scenario("rewind-to-0", "windowed", rewind(0)),
    Scenario("rewind-past-compaction", "file_sink", rewind_with_sink(1)),
    Scenario("rewind-with-sink", "named_sink", rewind_with_sink(4)),
    Scenario("rewind", "named_sources", rewind(4)),
    Scenario("set-offsets", "rocksdb_changelog", stay),
    Scenario("set-offsets", "several_sources", stay),
    Scenario(
        "set-offsets-to-earliest",
        "file_sink",
        start_over,
        lambda place: as_undisturbed(place) + place.facts["output"],
    ),
    Scenario("copy", "windowed", move),
    Scenario("copy", "rocksdb_v2", move),
    Scenario("copy", "transform", move),
    Scenario("migrate", "windowed", migrate, since="4.2"),
]


def scenarios_of(release: str, chosen: list[Scenario]) -> list[Scenario]:
    return [
        each
        for each in chosen
        if version(release) >= version(each.since) and CASES[each.case].runs_on(release)
    ]


def run(release: str, scenarios: Sequence[Any], base: Path) -> dict[str, tuple[Unpacked, Resumed]]:
    """Make the edits of scenarios that have an `edit` and a `case`; let a release finish them."""
    edited: dict[str, Unpacked] = {}
    for each in scenarios:
        place = unpack(Golden(release, each.case), base / str(each), relocate=True)
        edited[str(each)] = each.edit(place) or place
    resumed = resume(release, list(edited.values()), conf=NO_REPAIR)
    return dict(zip(edited, zip(edited.values(), resumed, strict=True), strict=True))


def assert_ends_as_expected(scenario: Scenario, place: Unpacked, done: Resumed) -> None:
    assert done.query_id == place.facts["query_id"]
    assert counted(done.output) == counted(scenario.expected(place))
    sink = ("--sink", str(place.output)) if scenario in OF_SINKS else ()
    assert main(("checkpoint", "verify", str(place.checkpoint), *sink)) == 0


@pytest.fixture(scope="module")
def resumed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[Unpacked, Resumed]]:
    scenarios = asked_for(request, "scenario", [*EVERYDAY, *OF_SINKS])
    return run(RELEASES[-1], scenarios, tmp_path_factory.mktemp("edits"))


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("scenario", [*EVERYDAY, *OF_SINKS], ids=str)
def test_spark_ends_with_the_expected_output(
    scenario: Scenario, resumed: dict[str, tuple[Unpacked, Resumed]]
) -> None:
    assert_ends_as_expected(scenario, *resumed[str(scenario)])


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("release", RELEASES)
def test_every_release_ends_with_the_expected_output(release: str, tmp_path: Path) -> None:
    chosen = MORE if release == RELEASES[-1] else [*EVERYDAY, *MORE]
    scenarios = scenarios_of(release, chosen)
    found = run(release, scenarios, tmp_path)
    for scenario in scenarios:
        assert_ends_as_expected(scenario, *found[str(scenario)])


def half_way(release: str, base: Path) -> Unpacked:
    """A rewind that lost power after a few of its deletions."""
    place = unpack(Golden(release, "windowed"), base, relocate=True)
    files = LocalFiles(place.checkpoint)
    plan = plan_rewind(survey(files), 4)
    with pytest.raises(Crash):
        Journal(FaultyFiles(files, crash_after(8))).execute(plan)
    return place


@pytest.mark.timeout(1800)
def test_spark_refuses_a_checkpoint_between_two_states(tmp_path: Path) -> None:
    release = RELEASES[-1]
    place = half_way(release, tmp_path)
    with pytest.raises(ReleaseError, match=r"No usable value for id|StreamMetadata"):
        resume(release, [place])
    checkpoint("rewind", place, "--to-batch", "4")
    drop_rows_after(place, 4)
    [done] = resume(release, [place], conf=NO_REPAIR)
    assert counted(done.output) == counted(as_undisturbed(place))


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
