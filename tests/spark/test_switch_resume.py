"""Spark goes on from a clone and after a switch, does not start where it must not, and goes back.

Each scenario starts from a golden checkpoint and is made with the `epochal` command. The Spark
release that wrote the checkpoint then reads the rest of the input.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.everyday import asked_for
from tests.golden.catalogue import CASES
from tests.golden.library import Golden, Unpacked, unpack
from tests.golden.shape import version
from tests.no_file_sink import with_no_sink
from tests.spark.releases import NO_REPAIR, RELEASES, ReleaseError, Resumed, counted, resume
from tests.spark.test_edits_resume import as_undisturbed
from tests.spark.test_edits_resume import run as run_edits

from epochal.checkpoint.entries import QueryMetadata
from epochal.cli.main import main
from epochal.files.local import LocalFiles

EXECUTE = ("--execute", "--settle-seconds", "0")


def run(*words: str, status: int = 0) -> None:
    assert main(with_no_sink(words)) == status, words


def set_aside(place: Unpacked) -> Path:
    """Move the checkpoint away, so that another one takes its place in the query."""
    old = place.base / "old"
    place.checkpoint.rename(old)
    return old


def clone(place: Unpacked) -> None:
    old = set_aside(place)
    run("checkpoint", "clone", str(old), str(place.checkpoint), "--execute")


def clone_of_a_clone(place: Unpacked) -> None:
    clone(place)
    place.checkpoint.rename(place.base / "between")
    run("checkpoint", "clone", str(place.base / "between"), str(place.checkpoint), "--execute")


def clone_for_another_output(place: Unpacked) -> None:
    """Go on in an output directory of its own; the rows before are added to compare with."""
    old = set_aside(place)
    place.output.rename(place.base / "old-output")
    words = ("--sink", str(place.output), "--execute")
    run("checkpoint", "clone", str(old), str(place.checkpoint), *words)


def switch(place: Unpacked) -> None:
    old = set_aside(place)
    run("switch", str(old), "--to", str(place.checkpoint), *EXECUTE)


def switch_to_a_clone_with_other_partitions(place: Unpacked) -> None:
    clone(place)
    words = ("--partitions", "3", *EXECUTE)
    run("state", "repartition", str(place.checkpoint), *words)
    words = ("--sink", str(place.output), *EXECUTE)
    run("switch", str(place.base / "old"), "--to", str(place.checkpoint), *words)


def forth_and_back(place: Unpacked) -> None:
    new = str(place.base / "new")
    run("switch", str(place.checkpoint), "--to", new, *EXECUTE)
    run("switch", str(place.checkpoint), "--back", new, *EXECUTE)


@dataclass(frozen=True)
class Scenario:
    edit: Callable[[Unpacked], None]
    case: str
    release: str = RELEASES[-1]

    def __str__(self) -> str:
        return f"{self.release}-{self.edit.__name__}-{self.case}"


def runs(case: str, release: str) -> bool:
    since = {"rocksdb_v2": "4.0", "join_rocksdb_ids": "4.0", "transform": "4.0"}.get(case, "3.5")
    return version(release) >= version(since) and CASES[case].runs_on(release)


PAIRS = [
    (clone, "windowed"),
    (clone, "join_outer"),
    (clone, "rocksdb_zip"),
    (clone, "rocksdb_changelog"),
    (clone, "rocksdb_v2"),
    (clone, "join_rocksdb_ids"),
    (clone, "transform"),
    (clone_of_a_clone, "windowed"),
    (clone_for_another_output, "file_sink"),
    (clone_for_another_output, "file_sink_counts"),
    (switch, "file_sink_counts"),
    (switch_to_a_clone_with_other_partitions, "file_sink_counts"),
    (forth_and_back, "file_sink_counts"),
]
SCENARIOS = [
    Scenario(edit, case, release)
    for release in RELEASES
    for edit, case in PAIRS
    if runs(case, release)
]
SAME_ID = (forth_and_back,)


@pytest.fixture(scope="module")
def resumed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[Unpacked, Resumed]]:
    base = tmp_path_factory.mktemp("switches")
    found: dict[str, tuple[Unpacked, Resumed]] = {}
    wanted = asked_for(request, "scenario", SCENARIOS)
    for release in RELEASES:
        if scenarios := [each for each in wanted if each.release == release]:
            found |= run_edits(release, scenarios, base)
    return found


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_the_output_is_that_of_an_undisturbed_run(
    scenario: Scenario, resumed: dict[str, tuple[Unpacked, Resumed]]
) -> None:
    place, done = resumed[str(scenario)]
    assert (done.query_id == place.facts["query_id"]) == (scenario.edit in SAME_ID)
    assert done.query_id == str(
        QueryMetadata.deserialize((place.checkpoint / "metadata").read_bytes()).id
    )
    expected = counted(as_undisturbed(place))
    if scenario.edit is clone_for_another_output:
        expected -= counted(place.facts["output"])
    assert counted(done.output) == expected
    run("checkpoint", "verify", str(place.checkpoint))


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("release", RELEASES)
def test_spark_does_not_start_where_the_query_was_switched_away(
    release: str, tmp_path: Path
) -> None:
    place = unpack(Golden(release, "windowed"), tmp_path, relocate=True)
    run("switch", str(place.checkpoint), "--to", str(tmp_path / "new"), *EXECUTE)
    offsets = sorted(path.name for path in (place.checkpoint / "offsets").iterdir())
    with pytest.raises(ReleaseError, match=r"(?s)metadata|StreamMetadata|usable value for id"):
        resume(release, [place])
    assert sorted(path.name for path in (place.checkpoint / "offsets").iterdir()) == offsets


@pytest.mark.timeout(1800)
def test_going_back_after_the_new_query_has_run_takes_its_rows_out_of_the_sinks_log(
    tmp_path: Path,
) -> None:
    place = unpack(Golden(RELEASES[-1], "file_sink_counts"), tmp_path, relocate=True)
    old = set_aside(place)
    rest = tmp_path / "rest-again"
    shutil.copytree(place.rest, rest)
    run("switch", str(old), "--to", str(place.checkpoint), *EXECUTE)
    [first] = resume(RELEASES[-1], [place], conf=NO_REPAIR)
    assert counted(first.output) == counted(as_undisturbed(place))

    back = ("switch", str(old), "--back", str(place.checkpoint), *EXECUTE)
    run(*back, status=2)  # it must know the sink
    run(*back, "--sink", str(place.output))
    place.checkpoint.rename(tmp_path / "new")
    old.rename(place.checkpoint)
    [second] = resume(RELEASES[-1], [place], conf=NO_REPAIR)
    assert counted(second.output) == counted(as_undisturbed(place))
    assert second.query_id == place.facts["query_id"] != first.query_id


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("case", ["file_sink", "file_sink_counts"])
def test_a_shadow_that_replays_earlier_epochs_has_written_the_same(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = unpack(Golden(RELEASES[-1], case), tmp_path, relocate=True)
    old, old_output = set_aside(place), tmp_path / "old-output"
    place.output.rename(old_output)
    for path in (old_output / "_spark_metadata").glob("[0-9]*"):
        path.write_text(path.read_text().replace(f"{tmp_path}/output/", f"{old_output}/"))
    # Without state several epochs can be replayed as one; with it, one by one.
    until = "8" if case == "file_sink" else "6"
    words = ("--at", "5", "--until", until, "--sink", str(place.output), "--execute")
    run("checkpoint", "clone", str(old), str(place.checkpoint), *words)
    resume(RELEASES[-1], [place], conf=NO_REPAIR)
    outputs = ("--output-a", str(old_output), "--output-b", str(place.output))
    capsys.readouterr()
    run("shadow", str(old), str(place.checkpoint), *outputs, "--json")
    found = json.loads(capsys.readouterr().out)
    assert found["verdict"] == "same"
    first = found["same"][0]
    assert (first["epochs_a"], first["epochs_b"]) == ([6, int(until)], [6, 6])
    assert sum(each["rows"] for each in found["same"]) > 0

    files = LocalFiles(place.output)
    logged = json.loads(files.read("_spark_metadata/6").splitlines()[1])
    victim = place.output / logged["path"].rpartition("/")[2]
    other = next(path for path in old_output.glob("*.parquet") if path.name != victim.name)
    shutil.copy(other, victim)
    victim.with_name(f".{victim.name}.crc").unlink(missing_ok=True)
    run("shadow", str(old), str(place.checkpoint), *outputs, status=1)
    shown = capsys.readouterr().out
    assert f"The first difference is in epoch{'s 6 to 8' if case == 'file_sink' else ' 6'}" in shown
