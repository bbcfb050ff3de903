"""State in epoch files: read, shown, published and edited like any other."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.golden.library import Golden, Unpacked, unpack
from tests.golden.planted import in_an_epoch_file, in_epoch_files
from tests.no_file_sink import with_no_sink

from epochal.cli.main import main
from epochal.errors import EditError
from epochal.files.local import LocalFiles
from epochal.tools.edit.rewind import plan_publish, require_published
from epochal.tools.edit.survey import survey
from epochal.tools.inspect.show import inspect
from epochal.tools.read_state.read import read_state

AT_ONCE = ("--execute", "--settle-seconds", "0")
WINDOWED = Golden("4.3.0", "windowed")


@pytest.fixture
def pristine(tmp_path: Path) -> Unpacked:
    return unpack(WINDOWED, tmp_path / "pristine", relocate=True)


@pytest.fixture
def killed(tmp_path: Path) -> Unpacked:
    place = unpack(WINDOWED, tmp_path / "killed", relocate=True)
    in_an_epoch_file(place.checkpoint)
    return place


def deltas(place: Unpacked) -> dict[str, bytes]:
    root = place.checkpoint
    return {
        str(path.relative_to(root)): path.read_bytes() for path in root.glob("state/*/*/*.delta")
    }


def run(*words: str) -> int:
    return main([*with_no_sink(words), *AT_ONCE])


@pytest.mark.parametrize("back", [0, 1])
def test_state_is_read_as_if_it_were_published(
    pristine: Unpacked, killed: Unpacked, back: int
) -> None:
    batch = inspect(LocalFiles(killed.checkpoint)).batches[-1].batch_id - back
    found = read_state(str(killed.checkpoint), batch_id=batch)
    expected = read_state(str(pristine.checkpoint), batch_id=batch)
    assert found.num_rows > 0
    assert found.to_pylist() == expected.to_pylist()


def test_the_epochs_of_a_continuous_query_are_not_called_batches(
    pristine: Unpacked, killed: Unpacked, capsys: pytest.CaptureFixture[str]
) -> None:
    for place, noun, nouns in ((pristine, "batch", "batches"), (killed, "epoch", "epochs")):
        for command, said in (
            ("show", f"continue with {noun} 11"),
            ("show", f"\n{nouns}\n{noun}  "),
            ("verify", f", 11 {nouns}\n"),
            ("log offsets", f"\n{noun}  "),
            ("log commits", f"\n{noun}  "),
            ("rewind --to-batch 9 --no-file-sink", f"rewind to {noun} 9: "),
            ("rewind --to-batch 9 --no-file-sink", f"{noun} after 9"),
        ):
            name, *options = command.split()
            folder = options.pop() if name == "log" else ""
            assert main(["checkpoint", name, str(place.checkpoint / folder), *options]) == 0
            assert said in capsys.readouterr().out
        assert main(["state", "show", str(place.checkpoint)]) == 0
        assert capsys.readouterr().out.startswith(f"{noun} 10, version 11, ")
        assert main(["checkpoint", "diff", str(place.checkpoint), "--batch", "1", "--batch", "99"])
        assert f"there is no {noun} 99" in capsys.readouterr().err


def test_two_checkpoints_of_continuous_queries_differ_in_epochs(
    killed: Unpacked, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = shutil.copytree(killed.checkpoint, tmp_path / "other")
    for log in ("offsets", "commits"):
        (other / log / "0").unlink()
    assert main(["checkpoint", "diff", str(killed.checkpoint), str(other)]) == 1
    assert "\nepoch 0  only before\n" in capsys.readouterr().out


def test_publishing_writes_sparks_files_byte_for_byte(pristine: Unpacked, killed: Unpacked) -> None:
    lost = deltas(pristine).keys() - deltas(killed).keys()
    assert lost
    assert run("checkpoint", "publish", str(killed.checkpoint)) == 0
    assert deltas(killed) == deltas(pristine)
    assert inspect(LocalFiles(killed.checkpoint)).unpublished is None
    assert plan_publish(survey(LocalFiles(killed.checkpoint))).is_empty
    assert run("checkpoint", "undo", str(killed.checkpoint)) == 0
    assert deltas(killed).keys() == deltas(pristine).keys() - lost


def test_a_leftover_of_another_history_is_replaced(pristine: Unpacked, killed: Unpacked) -> None:
    name = sorted(deltas(pristine).keys() - deltas(killed).keys())[0]
    (killed.checkpoint / name).write_bytes(b"of a batch that Spark did not finish")
    assert run("checkpoint", "publish", str(killed.checkpoint)) == 0
    assert deltas(killed) == deltas(pristine)


def test_edits_wait_until_the_state_is_published(
    killed: Unpacked, capsys: pytest.CaptureFixture[str]
) -> None:
    place = str(killed.checkpoint)
    with pytest.raises(EditError, match="epochal checkpoint publish"):
        require_published(survey(LocalFiles(killed.checkpoint)))
    edits = (
        ("state", "repartition", place, "--partitions", "3"),
        ("checkpoint", "repair", place),
        ("checkpoint", "set-offsets", place, "--shift-by", "0"),
    )
    for edit in edits:
        assert run(*edit) == 2
        assert "epochal checkpoint publish" in capsys.readouterr().err
    run("checkpoint", "publish", place)
    assert run(*edits[0]) == 0


def test_state_before_torn_offsets_is_published_and_then_the_offsets_are_repaired(
    killed: Unpacked, capsys: pytest.CaptureFixture[str]
) -> None:
    place, offsets = str(killed.checkpoint), killed.checkpoint / "offsets"
    newest = max(int(path.name) for path in offsets.iterdir() if path.name.isdigit())
    (offsets / str(newest + 1)).write_bytes((offsets / str(newest)).read_bytes()[:40])
    assert run("checkpoint", "repair", place) == 2
    assert f"the state after epoch {newest} does not" in capsys.readouterr().err
    assert run("checkpoint", "publish", place) == 0
    assert run("checkpoint", "repair", place) == 0
    assert main(["checkpoint", "verify", place]) == 0


def test_a_lost_epoch_file_is_left_by_a_repair_with_the_rewind_that_helps(
    killed: Unpacked, capsys: pytest.CaptureFixture[str]
) -> None:
    place = str(killed.checkpoint)
    shutil.rmtree(killed.checkpoint / "epochs")
    assert run("checkpoint", "repair", place) == 1
    assert f"rewind {place} --to-batch 9 --no-file-sink`" in capsys.readouterr().out
    assert run("checkpoint", "rewind", place, "--to-batch", "9") == 0
    assert main(["checkpoint", "verify", place]) == 0


def test_a_rewind_publishes_what_it_goes_back_to(pristine: Unpacked, killed: Unpacked) -> None:
    place = str(killed.checkpoint)
    batch = str(inspect(LocalFiles(killed.checkpoint)).unpublished)
    assert run("checkpoint", "rewind", place, "--to-batch", batch) == 0
    assert deltas(killed) == deltas(pristine)
    assert inspect(LocalFiles(killed.checkpoint)).unpublished is None
    assert run("checkpoint", "rewind", place, "--to-batch", str(int(batch) - 1)) == 0
    assert deltas(killed).keys() < deltas(pristine).keys()


def test_torn_offsets_hide_only_the_state_of_their_own_epoch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = unpack(WINDOWED, tmp_path, relocate=True)
    in_epoch_files(place.checkpoint, 3)
    (place.checkpoint / "offsets/10").write_bytes(b"")
    assert main(["checkpoint", "verify", str(place.checkpoint), "--no-file-sink"]) == 1
    shown = " ".join(capsys.readouterr().out.split())
    assert "rewind" in shown
    assert f"{place.checkpoint} --to-batch 9 --no-file-sink" in shown
    assert run("checkpoint", "rewind", str(place.checkpoint), "--to-batch", "9") == 0
    assert main(["checkpoint", "verify", str(place.checkpoint), "--no-file-sink"]) == 0
