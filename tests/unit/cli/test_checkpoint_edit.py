"""Commands that write: nothing changes without `--execute`, and every edit can be undone."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from tests.no_file_sink import with_no_sink
from tests.unit.checkpoint.samples import QUERY_ID, checkpoint, content, sink

from epochal.cli.editing import parse_moment
from epochal.cli.main import main
from epochal.errors import OptionError
from epochal.files.local import LocalFiles
from epochal.testing.files import MemoryFiles

NOW = ("--execute", "--settle-seconds", "0")


def on_disk(tree: MemoryFiles, directory: Path) -> LocalFiles:
    files = LocalFiles(directory, durable=False)
    for path, data in sorted(content(tree).items(), key=lambda item: item[0].endswith(".crc")):
        files.create(path, data)
    return files


def stateless(
    directory: Path, *, uncommitted: bool = False, torn: tuple[int, ...] = ()
) -> LocalFiles:
    """A checkpoint without state and checksums; the offsets of some batches are cut off."""
    files = on_disk(checkpoint(6, stateful=False, uncommitted=uncommitted), directory)
    for path in list(content(files)):
        if path.rpartition("/")[2].startswith("."):
            files.delete(path)
    for batch_id in torn:
        files.replace(f"offsets/{batch_id}", files.read(f"offsets/{batch_id}")[:40])
    return files


@pytest.fixture
def files(tmp_path: Path) -> LocalFiles:
    return on_disk(checkpoint(6), tmp_path / "ckpt")


def run(*words: str, status: int = 0) -> None:
    assert main(("checkpoint", *with_no_sink(words))) == status, words


def answer(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


COMMANDS = [
    ("rewind", "--to-batch", "3"),
    ("rewind", "--to-datetime", "2023-11-14T22:16:20Z"),
    ("set-offsets", "--shift-by", "-2"),
    ("migrate-offsets", "--to", "v2"),
    ("migrate-offsets", "--name", "0=orders"),
]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_dry_run_changes_nothing_and_shows_the_plan(
    words: tuple[str, ...], files: LocalFiles, capsys: pytest.CaptureFixture[str]
) -> None:
    before = content(files)
    command, *options = words
    run(command, files.url, *options)
    short = capsys.readouterr().out
    assert "Nothing was changed. Run again with --execute" in short
    run(command, files.url, *options, "--verbose")
    shown = capsys.readouterr().out
    assert content(files) == before
    assert files.info(".epochal") is None
    run(command, files.url, *options, "--json")
    planned = answer(capsys)
    assert (planned["command"], planned["executed"], planned["journal"]) == (command, False, None)
    for change in planned["changes"]:
        assert change["path"] in shown
    assert len(short.splitlines()) < len(planned["changes"]) + 6


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_execution_does_what_the_plan_showed_and_undo_restores_it(
    words: tuple[str, ...], files: LocalFiles, capsys: pytest.CaptureFixture[str]
) -> None:
    before = content(files)
    command, *options = words
    run(command, files.url, *options, "--json")
    planned = answer(capsys)
    run(command, files.url, *options, *NOW, "--json")
    done = answer(capsys)
    assert done["changes"] == planned["changes"]
    assert (done["executed"], done["journal"]) == (True, f"0001-{command}")
    assert content(files) != before
    run("undo", files.url, "--json")
    assert answer(capsys) == {
        "command": "undo",
        "executed": False,
        "journal": f"0001-{command}",
        "refused": None,
    }
    run("undo", files.url, *NOW)
    assert content(files) == before


def test_a_dry_undo_reports_that_it_would_fail_after_the_query_continued(
    files: LocalFiles, capsys: pytest.CaptureFixture[str]
) -> None:
    run("rewind", files.url, "--to-batch", "3", *NOW)
    files.create("offsets/4", files.read("offsets/3"))
    files.create("offsets/5", files.read("offsets/3"))
    files.create("offsets/6", files.read("offsets/3"))
    before = content(files)
    capsys.readouterr()
    run("undo", files.url, "--json", status=1)
    refused = answer(capsys)["refused"]
    assert "offsets/6" in refused
    assert "has used the checkpoint" in refused
    run("undo", files.url, status=1)
    shown = capsys.readouterr().out
    assert "Cannot undo 0001-rewind" in shown
    assert refused in shown
    run("undo", files.url, *NOW, status=2)
    assert content(files) == before


@pytest.mark.parametrize(
    ("text", "moment_ms"),
    [
        ("1970-01-01T00:00:01", 1000),
        ("1970-01-01T00:00:01Z", 1000),
        ("1970-01-01T01:00:01.5+01:00", 1500),
        ("1970-01-02", 86_400_000),
    ],
)
def test_a_time_without_a_zone_is_utc(text: str, moment_ms: int) -> None:
    assert parse_moment(text) == moment_ms


def test_text_that_is_not_a_time_is_rejected() -> None:
    with pytest.raises(OptionError, match="'yesterday' is not a time"):
        parse_moment("yesterday")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("rewind",), "Give exactly one of --to-batch and --to-datetime"),
        (("rewind", "--to-batch", "1", "--to-datetime", "2023-01-01"), "Give exactly one of"),
        (("rewind", "--to-batch", "99"), "offsets/99 does not exist"),
        (("set-offsets",), "Give exactly one of --to-offset, --shift-by"),
        (("set-offsets", "--to-earliest", "--to-latest"), "Give exactly one of --to-offset"),
        (("set-offsets", "--source", "7", "--shift-by", "1"), "no source '7' in offsets/5"),
        (("set-offsets", "--shift-by", "1"), "log ends at 5"),
        (("migrate-offsets", "--to", "v3"), "the only target is v2"),
        (("migrate-offsets", "--name", "orders"), "--name takes I=NAME, not 'orders'"),
        (("undo",), "contains no edit that could be undone"),
        (("repair", "--code", "NONSENSE"), "No repair for NONSENSE"),
    ],
)
def test_a_wrong_command_line_is_one_line_and_status_2(
    words: tuple[str, ...], message: str, files: LocalFiles, capsys: pytest.CaptureFixture[str]
) -> None:
    before = content(files)
    command, *options = words
    run(command, files.url, *options, status=2)
    shown = capsys.readouterr().err
    assert message in shown
    assert len(shown.splitlines()) == 1
    assert content(files) == before


def test_a_rewind_includes_the_sink(
    files: LocalFiles, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = on_disk(sink(6), tmp_path / "out")
    before = content(output)
    run("rewind", files.url, "--to-batch", "3", "--sink", output.url, *NOW, "--json")
    done = answer(capsys)
    assert done["roots"] == {"sink": output.url}
    assert sorted(content(output)) != sorted(before)
    assert "_spark_metadata/4" not in content(output)
    run("undo", files.url, *NOW, status=2)
    assert f"name it on the command line, with --sink {output.url}" in capsys.readouterr().err
    run("undo", files.url, "--sink", output.url, *NOW)
    assert content(output) == before


def test_edits_are_listed_and_pruned(files: LocalFiles, capsys: pytest.CaptureFixture[str]) -> None:
    run("rewind", files.url, "--to-batch", "4", *NOW)
    run("rewind", files.url, "--to-batch", "3", *NOW)
    capsys.readouterr()
    run("undo", files.url, "--list", "--json")
    listed = json.loads(capsys.readouterr().out)
    assert [(each["id"], each["state"]) for each in listed] == [
        ("0001-rewind", "done"),
        ("0002-rewind", "done"),
    ]
    run("undo", files.url, "0001-rewind", *NOW, status=2)
    assert "Undo 0002-rewind first" in capsys.readouterr().err
    run("undo", files.url, "--prune")
    assert "Would forget: 0001-rewind, 0002-rewind" in capsys.readouterr().out
    run("undo", files.url, "--prune", "--execute")
    capsys.readouterr()
    run("undo", files.url, "--list", "--json")
    assert json.loads(capsys.readouterr().out) == []
    run("undo", files.url, "--list")
    assert capsys.readouterr().out == "There are no edits.\n"


def test_a_copy_is_verified_and_undone_at_its_destination(
    files: LocalFiles, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there = tmp_path / "there"
    run("copy", files.url, str(there))
    assert not there.exists()
    run("copy", files.url, str(there), *NOW)
    assert "Every file was read back" in capsys.readouterr().out
    assert (there / "offsets" / "5").read_bytes() == files.read("offsets/5")
    assert not list(there.rglob(".*.crc"))
    run("copy", files.url, str(there), *NOW, status=2)
    assert "is not empty" in capsys.readouterr().err
    run("undo", str(there), *NOW)
    assert not [path for path in there.rglob("*") if path.is_file() and ".epochal" not in str(path)]


def test_repair_lists_what_is_left_and_exits_1_for_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = stateless(tmp_path / "ckpt")
    run("verify", files.url)
    files.delete("metadata")
    files.create("offsets/.6.crc", b"crc")
    files.replace("offsets/2", b"v99\n{}")
    run("repair", files.url, "--query-id", QUERY_ID, status=1)
    shown = capsys.readouterr().out
    assert "left: LOG_VERSION_UNKNOWN offsets/2" in shown
    assert files.info("metadata") is None
    run("repair", files.url, "--query-id", QUERY_ID, *NOW, "--json", status=1)
    done = answer(capsys)
    assert [each["code"] for each in done["left"]] == ["LOG_VERSION_UNKNOWN"]
    assert files.read("metadata") == f'{{"id":"{QUERY_ID}"}}'.encode()
    assert files.info("offsets/.6.crc") is None


@pytest.mark.parametrize(
    ("torn", "dropped", "told"),
    [
        ((5,), "batch 5:", "Batch 5 was committed"),
        ((4, 5), "batches 4 to 5:", "Batches 4 to 5 were committed"),
    ],
)
def test_repair_names_the_committed_batches_before_it_drops_them(
    torn: tuple[int, ...],
    dropped: str,
    told: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    files = stateless(tmp_path / "ckpt", torn=torn)
    run("repair", files.url, status=1)
    command = f"`epochal checkpoint rewind {files.url} --to-batch {torn[0] - 1} --no-file-sink`"
    assert f"drop the committed {dropped} run {command}" in capsys.readouterr().out
    run("repair", files.url, "--rewind")
    assert f"note: {told} and will run again" in capsys.readouterr().out
    run("rewind", files.url, "--to-batch", str(torn[0] - 1), *NOW)
    run("verify", files.url)


def test_the_commands_that_are_named_work_in_a_directory_with_a_space(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = stateless(tmp_path / "my checkpoint")
    before = content(files)
    run("rewind", files.url, "--to-batch", "3", *NOW)
    command = capsys.readouterr().out.splitlines()[-1]
    assert main([*shlex.split(command)[1:], "--settle-seconds", "0"]) == 0
    assert content(files) == before
    files.replace("offsets/5", b"v1")
    capsys.readouterr()
    run("show", files.url, status=1)
    command = capsys.readouterr().out.splitlines()[-1].split("`")[1]
    assert main(shlex.split(command)[1:]) == 1
    assert "error: LOG_ENTRY_UNREADABLE  offsets/5" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("target", "added"),
    [(("--shift-by", "-1"), "batches 6 to 7"), (("--to-offset", "5"), "batch 6")],
)
def test_set_offsets_counts_the_batches_that_it_adds(
    target: tuple[str, ...], added: str, files: LocalFiles, capsys: pytest.CaptureFixture[str]
) -> None:
    run("set-offsets", files.url, *target, "--json")
    plan = answer(capsys)
    assert plan["summary"].startswith(f"add {added}: source 0 ")
    [why] = {each["why"] for each in plan["changes"] if each["path"].startswith("offsets/")}
    assert why.startswith('source 0: {"logOffset":5} -> ')


def test_set_offsets_warns_of_partitions_that_the_query_has_not_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = stateless(tmp_path / "ckpt")
    for batch_id in range(6):
        lines = files.read(f"offsets/{batch_id}").split(b"\n")
        files.replace(f"offsets/{batch_id}", b"\n".join([*lines[:2], b'{"orders":{"0":7,"1":8}}']))
    run("set-offsets", files.url, "--to-offset", "orders:0:5", "--json")
    assert not any("has not read" in each for each in answer(capsys)["warnings"])
    targets = ("--to-offset", "orders:2:0", "--to-offset", "order:0:0")
    run("set-offsets", files.url, *targets, "--json")
    told = "Source 0 has not read orders:2, order:0 so far."
    assert any(each.startswith(told) for each in answer(capsys)["warnings"])


def test_a_time_before_all_batches_is_answered_with_the_oldest_one(
    files: LocalFiles, capsys: pytest.CaptureFixture[str]
) -> None:
    run("rewind", files.url, "--to-datetime", "2020-01-01", status=2)
    told = "no committed batch is as old as 2020-01-01T00:00:00.000Z; the oldest is of 2023-11-14T"
    assert told in capsys.readouterr().err


@pytest.mark.parametrize("command", ["rewind", "set-offsets", "repair"])
def test_a_checkpoint_that_was_left_does_not_change_the_output_of_the_one_that_took_over(
    command: str, files: LocalFiles, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`verify` named a rewind, which took the new query's batches out of the log of the output."""
    output, new = on_disk(sink(6), tmp_path / "output"), str(tmp_path / "new")
    told = ("--sink", output.url)
    assert main(("switch", files.url, "--to", new, *told, *NOW)) == 0
    run("set-offsets", new, "--shift-by", "0", *told, *NOW)
    before = content(output)
    run("verify", files.url, *told, status=1)
    assert "SINK_AHEAD" not in capsys.readouterr().out
    words = {"rewind": ("--to-batch", "4"), "set-offsets": ("--shift-by", "0"), "repair": ()}
    for named in (told, ("--no-file-sink",)):
        run(command, files.url, *words[command], *named, *NOW, status=2)
        assert f"epochal switch {files.url} --back {new}" in capsys.readouterr().err
    assert content(output) == before
    assert main(("switch", files.url, "--back", new, *told, *NOW)) == 0
