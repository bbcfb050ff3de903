"""A repair that may go back ends healthy, or drops no batch, whatever is damaged."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

import pytest
from tests.golden.library import Golden, unpack
from tests.golden.random_damage import AT_ONCE, CLONE, Case, damaged, digest, epochal, obey

SEEDS = 12


def batches(case: Case) -> set[str]:
    return {path.name for path in case.place.checkpoint.glob("commits/[0-9]*")}


def repair(case: Case, *more: str) -> tuple[int, str]:
    return epochal("checkpoint", "repair", str(case.place.checkpoint), *case.told, *more)


def is_healthy(case: Case) -> bool:
    return epochal("checkpoint", "verify", str(case.place.checkpoint), *case.told)[0] == 0


@pytest.mark.parametrize(
    "part", [0, *(pytest.param(part, marks=pytest.mark.full) for part in range(1, 25))]
)
def test_a_repair_that_may_go_back_ends_healthy_or_drops_no_batch(
    part: int, tmp_path: Path
) -> None:
    for seed in range(part * SEEDS, (part + 1) * SEEDS):
        case, _ = damaged(seed, tmp_path / str(seed))
        before, bytes_before = batches(case), digest(case.place)
        planned, _ = repair(case, "--rewind")
        assert digest(case.place) == bytes_before
        done, told = repair(case, "--rewind", *AT_ONCE)
        assert "Traceback" not in told
        assert done == planned or done == 2, (seed, case.faults, told)
        assert (done == 0) == is_healthy(case) or done == 2, (seed, case.faults, told)
        assert done == 0 or batches(case) >= before - unreadable(case), (seed, case.faults, told)
        shutil.rmtree(case.place.base)


def unreadable(case: Case) -> set[str]:
    """The batches whose commit or offsets were damaged: no query can use one without the other."""
    parts = (fault.partition(" ")[0].split("/") for fault in case.faults)
    return {name for *_, folder, name in parts if folder in ("commits", "offsets")}


def test_fixes_that_contradict_each_other_are_not_shown(tmp_path: Path) -> None:
    """Single fixes wrote offsets before the newest batch, and a rewind took all but those back."""
    place = unpack(Golden("4.3.0", "windowed"), tmp_path, relocate=True)
    case = Case(0, place)
    for name in ("offsets/8", "offsets/9", "state/0/1/11.delta"):
        path = place.checkpoint / name
        path.unlink()
        path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
    status, told = repair(case, "--rewind", *AT_ONCE)
    assert (status, is_healthy(case)) == (0, True), told


def test_a_file_of_a_source_that_was_copied_ahead_is_removed_and_the_originals_stay(
    tmp_path: Path,
) -> None:
    """The copy hid the originals, so they were removed, and Spark asked for the batches between."""
    case = Case(0, unpack(Golden("4.3.0", "file_sink_counts"), tmp_path, relocate=True))
    log = case.place.checkpoint / "sources/0"
    before = digest(case.place)
    shutil.copyfile(log / "8.compact", log / "10.compact")
    assert not is_healthy(case)
    status, told = epochal(
        *("checkpoint", "repair", str(case.place.checkpoint)),
        *("--sink", str(case.place.output), *AT_ONCE),
    )
    assert (status, digest(case.place)) == (0, before), told


def test_where_a_new_query_id_doubles_rows_and_where_the_old_one_is_are_said(
    tmp_path: Path,
) -> None:
    """A Delta table took the last batch again, from a query with a new id."""
    case = Case(0, unpack(Golden("4.3.0", "windowed"), tmp_path, relocate=True))
    case.place.checkpoint.joinpath("metadata").unlink()
    told = " ".join(repair(case)[1].split())
    assert "takes a batch again that it has but that is not committed here" in told
    assert "Pass the old id with --query-id: a Delta table has it in its log" in told


@pytest.mark.parametrize("name", ["commits/4", "offsets/7"])
def test_a_file_is_written_again_once_the_directory_with_its_name_is_out_of_the_way(
    name: str, tmp_path: Path
) -> None:
    """The edit needed a file where it left the directory, so nothing was repaired at all."""
    case = Case(0, unpack(Golden("4.3.0", "file_sink"), tmp_path, relocate=True))
    path = case.place.checkpoint / name
    path.unlink()
    path.mkdir()
    case.outcome = ""
    obey(case, page=False)
    assert (case.outcome, path.is_dir()) == ("healthy", False), case.steps
    assert all(step.startswith(("repair 0", "repair 1")) for step in case.steps), case.steps


@pytest.mark.parametrize("commit", ["torn", "lost"])
def test_damaged_state_of_a_batch_that_runs_again_goes_and_tables_get_a_clone(
    commit: str, tmp_path: Path
) -> None:
    """Delta skipped the batch, so its state stayed as it was, and the next batch failed."""
    case = Case(0, unpack(Golden("4.3.0", "join_inner"), tmp_path, relocate=True))
    for path in (
        case.place.checkpoint / "state/0/1/right-keyWithIndexToValue/11.delta",
        *([case.place.checkpoint / "commits/10"] if commit == "torn" else []),
    ):
        path.write_bytes(path.read_bytes()[:20])
        path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
    if commit == "lost":
        for name in ("10", ".10.crc"):
            (case.place.checkpoint / "commits" / name).unlink(missing_ok=True)
    assert not is_healthy(case)
    told = repair(case)[1]
    assert "The state after batch 10 is lost. A Delta table that has the batch already" in told
    [clone] = CLONE.findall(told)
    go_on = [str(tmp_path / "new") if word == "NEW" else word for word in shlex.split(clone)[1:]]
    assert epochal(*go_on, "--execute")[0] == 0
    assert epochal("checkpoint", "verify", str(tmp_path / "new"), "--no-file-sink")[0] == 0
    assert (repair(case, *AT_ONCE)[0], is_healthy(case)) == (0, True)
    assert list(case.place.checkpoint.glob("state/*/*/*/11.delta")) == []
    assert batches(case) == {str(n) for n in range(10)}


def test_a_file_sink_forgets_the_batch_whose_damaged_state_must_be_written_again(
    tmp_path: Path,
) -> None:
    """Spark skipped the batch, and the next one failed; `verify` did not need the file."""
    case = Case(0, unpack(Golden("4.3.0", "file_sink_counts"), tmp_path, relocate=True))
    (case.place.checkpoint / "commits/10").unlink()
    (case.place.checkpoint / "commits/.10.crc").unlink(missing_ok=True)
    path = case.place.checkpoint / "state/0/0/11.delta"
    path.write_bytes(path.read_bytes()[:20])
    assert not is_healthy(case)
    status, told = repair(case, *AT_ONCE)
    assert (status, is_healthy(case)) == (0, True), told
    assert not (case.place.output / "_spark_metadata/10").exists()


def test_a_copy_of_older_offsets_is_planned_again(tmp_path: Path) -> None:
    """Spark asked the file source for what lies between the batches, which ran backwards."""
    case = Case(0, unpack(Golden("4.3.0", "join_rocksdb"), tmp_path, relocate=True))
    assert (
        epochal(
            *("checkpoint", "rewind", str(case.place.checkpoint), "--to-batch", "7"),
            *("--no-file-sink", *AT_ONCE),
        )[0]
        == 0
    )
    log = case.place.checkpoint / "offsets"
    shutil.copyfile(log / "6", log / "8")
    assert not is_healthy(case)
    status, told = repair(case, *AT_ONCE)
    assert (status, is_healthy(case), (log / "8").exists()) == (0, True, False), told


def test_torn_offsets_lead_to_a_rewind_also_when_databases_are_opened(tmp_path: Path) -> None:
    """Half a source's offset was taken for one; and then `--deep` said that nothing helps."""
    case = Case(0, unpack(Golden("4.3.0", "rocksdb_dedup"), tmp_path, relocate=True), deep=True)
    path = case.place.checkpoint / "offsets/10"
    data = path.read_bytes()
    path.write_bytes(data[: data.rindex(b"\n") + 3])
    obey(case, page=False)
    assert (case.outcome, case.steps) == ("healthy", ["rewind 0: "])


def test_a_batch_that_is_planned_again_may_be_in_a_table_already(tmp_path: Path) -> None:
    """Delta skipped the batch with its new offsets: nobody can tell that it has it."""
    case = Case(0, unpack(Golden("4.3.0", "windowed"), tmp_path, relocate=True))
    for name in ("commits/10", "commits/.10.crc", "offsets/.10.crc"):
        (case.place.checkpoint / name).unlink(missing_ok=True)
    (case.place.checkpoint / "offsets/10").write_bytes(b"v1\n{")
    told = repair(case)[1]
    assert "If a Delta table has batch 10 already, because only its commit was lost" in told
    assert "--at 9 --no-file-sink" in CLONE.findall(told)[0]


def copy_log(case: Case, source: str, *names: str) -> None:
    log = case.place.output / "_spark_metadata"
    for name in names:
        shutil.copyfile(log / source, log / name)


@pytest.mark.parametrize("plain", ["emptied", "lost", "there"])
def test_a_compact_file_of_a_sink_that_was_copied_ahead_is_not_taken_for_the_batch(
    plain: str, tmp_path: Path
) -> None:
    """The names around it were made to fit, and the files of the batch vanished from the log."""
    case = Case(0, unpack(Golden("4.3.0", "file_sink"), tmp_path, relocate=True))
    words = ("checkpoint", "rewind", str(case.place.checkpoint), "--to-batch", "4")
    assert epochal(*words, *case.told, *AT_ONCE)[0] == 0
    copy_log(case, "2.compact", "3.compact")
    if plain == "emptied":
        (case.place.output / "_spark_metadata/3").write_bytes(b"")
    elif plain == "lost":
        (case.place.output / "_spark_metadata/3").unlink()
    assert repair(case, *AT_ONCE)[0] == 1
    obey(case, page=False)
    assert case.outcome == "healthy"
    assert [step for step in case.steps if step.startswith("rewind")], case.steps
    assert not (case.place.output / "_spark_metadata/3.compact").exists()


def test_where_every_earlier_entry_of_a_sink_is_gone_a_copy_cannot_be_mended(
    tmp_path: Path,
) -> None:
    case = Case(0, unpack(Golden("4.3.0", "file_sink_cleanup"), tmp_path, relocate=True))
    words = ("checkpoint", "rewind", str(case.place.checkpoint), "--to-batch", "7")
    assert epochal(*words, *case.told, *AT_ONCE)[0] == 0
    copy_log(case, "5.compact", "6.compact")
    (case.place.output / "_spark_metadata/5.compact").unlink()
    told = epochal("checkpoint", "verify", str(case.place.checkpoint), *case.told)[1]
    assert "6.compact is there, too" in told
    assert "it lacks files that 6 lists: it is torn, or a copy" in told
    before = digest(case.place)
    assert (repair(case, *AT_ONCE)[0], digest(case.place)) == (1, before)
    obey(case, page=False)
    assert (case.outcome, case.steps) == ("cannot", [])


def test_a_batch_whose_offsets_were_made_up_is_not_taken_for_one_of_an_edit(tmp_path: Path) -> None:
    """An empty entry was written into the sink's log, so the rows of the batch vanished."""
    case = Case(0, unpack(Golden("4.3.0", "file_sink_counts"), tmp_path, relocate=True))
    words = ("checkpoint", "rewind", str(case.place.checkpoint), "--to-batch", "7")
    assert epochal(*words, *case.told, *AT_ONCE)[0] == 0
    case.place.checkpoint.joinpath("offsets/6").unlink()
    case.place.checkpoint.joinpath("offsets/.6.crc").unlink(missing_ok=True)
    case.place.output.joinpath("_spark_metadata/6").unlink()
    for _ in range(2):  # the first makes up the offsets, which the second sees
        assert repair(case, *AT_ONCE)[0] == 1
        assert not (case.place.output / "_spark_metadata/6").exists()
    obey(case, page=False)
    assert (case.outcome, batches(case)) == ("healthy", {str(n) for n in range(6)})


def test_a_snapshot_that_was_copied_to_a_later_version_is_seen_without_deep(tmp_path: Path) -> None:
    """Its name and its rows are right, so a restart took the state of an earlier batch."""
    case = Case(0, unpack(Golden("4.3.0", "windowed"), tmp_path, relocate=True))
    state = case.place.checkpoint / "state/0/0"
    shutil.copyfile(state / "4.snapshot", state / "8.snapshot")
    told = epochal("checkpoint", "verify", str(case.place.checkpoint), *case.told)[1]
    assert "STATE_SNAPSHOT_DISAGREES  state/0/0/8.snapshot" in told
    obey(case, page=False)
    assert case.outcome == "healthy", case.steps
