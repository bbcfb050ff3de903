"""Attacks with a prepared checkpoint: what it says names no place, and what it has is only read.

`tests/fuzz/test_prepared_checkpoints.py` runs every command on random combinations of these.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
from pathlib import Path

import pytest
from tests.unit.checkpoint.samples import checkpoint, sink
from tests.unit.cli.test_checkpoint_edit import on_disk

from epochal.checkpoint.entries import Switched
from epochal.cli.main import main
from epochal.files import Files
from epochal.files.local import LocalFiles
from epochal.state.files.codecs import compress_pieces
from epochal.tools.edit.edit_journal import Journal
from epochal.tools.edit.edit_plan import Plan, Tree

NOW = ("--execute", "--settle-seconds", "0")
NO_SINK = {"rewind": ("--no-file-sink",), "repair": ("--no-file-sink",)}


def content(files: Files) -> dict[str, bytes]:
    return {path: files.read(path) for path, _ in files.walk() if "/.epochal/" not in f"/{path}"}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return Path(on_disk(checkpoint(6), tmp_path / "checkpoint").url)


@pytest.fixture
def victim(tmp_path: Path) -> Files:
    """An output directory of somebody else's query."""
    return on_disk(sink(6), tmp_path / "victim")


def prepare_journal(home: Path, place: str, *, done: bool) -> None:
    """Write the journal of an edit that seems to have changed files in `place`."""
    record = {
        "version": 1,
        "command": "rewind",
        "arguments": {"sink": place},
        "summary": "rewind to batch 3",
        "started_ms": 0,
        "roots": {"sink": place},
        "watches": [],
        "made_directories": [],
        "emptied": [],
        "changes": [
            {
                "root": "sink",
                "path": "authorized_keys",
                "before": None,
                "modified_ms": 0,
                "crc": None,
                "after": None,
            }
        ],
        "gate": None,
    }
    folder = home / ".epochal/journal/0001-rewind"
    folder.mkdir(parents=True)
    (folder / "plan.json").write_text(json.dumps(record))
    if done:
        (folder / "done").write_bytes(b"")


@pytest.mark.parametrize("command", ["undo", "rewind"])
@pytest.mark.parametrize("done", [True, False])
def test_a_place_that_a_journal_names_is_not_touched(
    command: str, done: bool, home: Path, victim: Files, capsys: pytest.CaptureFixture[str]
) -> None:
    prepare_journal(home, victim.url, done=done)
    before = content(victim)
    arguments = ("--to-batch", "3") if command == "rewind" else ()
    assert main(["checkpoint", command, str(home), *arguments, *NOW]) == 2
    assert f"--sink {victim.url}" in capsys.readouterr().err.replace("\n  ", " ") or (
        command == "rewind"
    )
    assert content(victim) == before


def test_a_journal_cannot_create_files_elsewhere(home: Path, tmp_path: Path) -> None:
    files, elsewhere = LocalFiles(home), on_disk(sink(6), tmp_path / "elsewhere")
    plan = Plan(
        "repair", "", (Tree({}, "sink").write("planted", b"x", ""),), roots={"sink": elsewhere}
    )
    journal = Journal(files)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Journal, "_roll_forward", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            journal.execute(plan)
    assert main(["checkpoint", "repair", str(home), *NOW]) == 2
    assert elsewhere.info("planted") is None
    assert main(["checkpoint", "repair", str(home), "--sink", elsewhere.url, *NOW]) in (0, 1)
    assert elsewhere.read("planted") == b"x"


@pytest.mark.parametrize("scheme", ["webhdfs", "hdfs", "swebhdfs"])
@pytest.mark.parametrize("command", ["undo", "rewind", "repair"])
def test_no_host_that_a_journal_names_is_contacted(
    scheme: str, command: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        port = server.getsockname()[1]
        monkeypatch.setenv("HADOOP_TOKEN", "secret")
        monkeypatch.setenv("EPOCHAL_WEBHDFS", f"127.0.0.1:{port}")
        prepare_journal(home, f"{scheme}://127.0.0.1:{port}/out", done=True)
        arguments = ("--to-batch", "3") if command == "rewind" else ()
        for more in ((), NOW):
            assert main(["checkpoint", command, str(home), *arguments, *more]) in (1, 2)
        with pytest.raises(BlockingIOError):
            server.accept()


def test_a_switched_checkpoint_does_not_choose_the_one_to_close(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    victim, other = (on_disk(checkpoint(6), tmp_path / name) for name in ("victim", "other"))
    (home / "metadata").write_bytes(Switched(victim.url, 5, 5, "query").serialize())
    before = content(victim), content(other)
    assert main(["switch", str(home), "--back"]) == 2
    assert main(["switch", str(home), "--back", other.url, *NOW]) == 2
    assert main(["checkpoint", "undo", str(home), *NOW]) == 2
    assert (content(victim), content(other)) == before
    assert "Traceback" not in capsys.readouterr().err


def test_the_dry_run_of_a_rewind_shows_the_output_directory(
    home: Path, victim: Files, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["checkpoint", "rewind", str(home), "--to-batch", "3", "--sink", victim.url])
    assert f"also changes files in {victim.url}" in capsys.readouterr().out


@pytest.mark.parametrize("link", ["state", "offsets/5", "sources/0"])
def test_what_a_link_points_to_is_neither_copied_nor_deleted(
    link: str, home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    private = tmp_path / "private"
    private.mkdir()
    (private / "key").write_text("secret")
    (private / "9.delta").write_text("secret")
    place = home / link
    if place.is_dir():
        for each in sorted(place.rglob("*"), reverse=True):
            each.rmdir() if each.is_dir() else each.unlink()
        place.rmdir()
        place.symlink_to(private)
    else:
        place.unlink(missing_ok=True)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(private / "key")
    assert main(["checkpoint", "verify", str(home)]) == 1
    assert "is a symbolic link" in capsys.readouterr().out
    main(["checkpoint", "copy", str(home), str(tmp_path / "copy"), *NOW])
    main(["checkpoint", "rewind", str(home), "--to-batch", "3", *NOW])
    assert sorted(path.name for path in private.iterdir()) == ["9.delta", "key"]
    copied = [path for path in (tmp_path / "copy").rglob("*") if path.is_file()]
    assert not any(b"secret" in path.read_bytes() for path in copied)


@pytest.mark.parametrize("name", ["metadata", "offsets/5", "commits/5", "state/0/0/3.delta"])
def test_a_pipe_is_reported_and_never_waited_for(
    name: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / name).parent.mkdir(parents=True, exist_ok=True)
    (home / name).unlink(missing_ok=True)
    os.mkfifo(home / name)
    assert main(["checkpoint", "verify", str(home)]) == 1
    assert "is a pipe, a socket or a device" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["commits", "state/0/0"])
def test_what_cannot_be_listed_is_not_said_to_be_missing(
    name: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / name).rename(home.parent / "moved")
    (home / name).symlink_to(home.parent / "moved")
    assert main(["checkpoint", "verify", str(home), "--no-file-sink", "--json"]) == 1
    findings = json.loads(capsys.readouterr().out)["findings"]
    there = [each["code"] for each in findings if f"{each['path']}/".startswith(f"{name}/")]
    assert there == ["FILE_UNREADABLE"]


@pytest.mark.parametrize("log", ["offsets", "sources/0", "sources"])
def test_a_log_that_is_a_link_is_not_followed(
    log: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    private = home.parent / "private"
    (private / "0").mkdir(parents=True)
    (private / "0" / "5").write_bytes((home / "offsets/5").read_bytes())
    (private / "5").write_bytes((home / "offsets/5").read_bytes())
    (home / log).parent.mkdir(exist_ok=True)
    if (home / log).exists():
        shutil.rmtree(home / log)
    (home / log).symlink_to(private)
    named = home / ("sources/0" if log == "sources" else log)
    assert main(["checkpoint", "log", str(named), "--json"]) == 2
    told = capsys.readouterr()
    assert "is a symbolic link" in told.err
    assert told.out == ""


def test_a_log_entry_beyond_the_bound_is_not_read(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with open(home / "offsets/5", "r+b") as entry:
        entry.truncate(65 << 20)
    assert main(["checkpoint", "verify", str(home)]) == 1
    out = capsys.readouterr().out
    assert f"is larger than {64 << 20} bytes" in out
    main(["--most-entry-bytes", str(66 << 20), "checkpoint", "verify", str(home)])
    assert "is larger than" not in capsys.readouterr().out


def test_a_file_of_an_output_beyond_the_bound_is_not_read(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "rows"
    output.mkdir()
    with open(output / "part.json", "wb") as file:
        file.truncate(200 << 30)
    told = ("--output-a", str(output), "--output-b", str(output))
    assert main(["shadow", str(home), str(home), *told]) == 2
    assert "--most-state-bytes" in capsys.readouterr().err


def test_a_tree_without_end_is_an_error_and_not_walked(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "state/0/0" / "/".join("d" * 100)).mkdir(parents=True)
    assert main(["checkpoint", "copy", str(home), f"{home}-copy"]) == 2
    assert "directories are nested more than 64 deep below it" in capsys.readouterr().err


@pytest.mark.parametrize("command", [("commit", "--group", "g"), ("lag",)])
def test_commands_of_kafka_read_within_the_same_bounds(
    command: tuple[str, ...], home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("metadata", "offsets/5", "commits/5"):
        with open(home / name, "r+b") as entry:
            entry.truncate(65 << 20)
    words = [*command, "--checkpoint", str(home), "--bootstrap-servers", "127.0.0.1:1"]
    assert main(["kafka", *words]) == 2
    assert f"is larger than {64 << 20} bytes" in capsys.readouterr().err


@pytest.mark.parametrize("command", [("undo", "--list"), ("undo",), ("show",), ("verify",)])
def test_no_control_character_of_a_checkpoint_reaches_the_terminal(
    command: tuple[str, ...], home: Path, victim: Files, capsys: pytest.CaptureFixture[str]
) -> None:
    hostile = "\x1b]0;title\x07\x1b[2J\x9b2J\u202ehealthy\nforged: 0 findings"
    prepare_journal(home, f"{victim.url}{hostile}", done=False)
    plan = home / ".epochal/journal/0001-rewind/plan.json"
    plan.write_text(plan.read_text().replace("rewind to batch 3", json.dumps(hostile)[1:-1]))
    (home / "offsets" / hostile.replace("/", "")).write_bytes(b"v1")
    for more in ((), ("--json",)):
        main(["checkpoint", command[0], str(home), *command[1:], *more])
        said = "".join(capsys.readouterr())
        assert all(char.isprintable() or char == "\n" for char in said)
        assert "forged: 0 findings" not in said.split("\n")
        assert not [line for line in said.split("\n") if line.startswith("forged")]


def test_a_state_file_that_unpacks_to_gigabytes_is_reported_and_not_unpacked(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    [bomb] = home.glob("state/0/0/6.delta")
    bomb.write_bytes(b"".join(compress_pieces([b"\x7f" * (1 << 20)] * 300, "lz4")))
    assert main(["checkpoint", "verify", str(home)]) == 1
    assert f"unpacks to more than {256 << 20} bytes" in capsys.readouterr().out
    schemas = ("--key-schema", "k int", "--value-schema", "v int")
    assert main(["state", "read", str(home), *schemas]) == 2
    assert "--most-unpacked-bytes" in capsys.readouterr().err
    main(["--most-unpacked-bytes", str(1 << 30), "checkpoint", "verify", str(home)])
    assert "unpacks to more than" not in capsys.readouterr().out


@pytest.mark.parametrize("command", [("rewind", "--to-batch", "3"), ("copy",)])
def test_a_name_that_is_not_text_is_an_error_and_nothing_is_changed(
    command: tuple[str, ...], home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with open(os.fsencode(home / "offsets") + b"/\xff\xfe", "xb"):
        pass
    before = content(LocalFiles(home))
    verb, *rest = command
    where = [str(tmp_path / "copy")] if verb == "copy" else ["--no-file-sink"]
    assert main(["checkpoint", verb, str(home), *where, *rest, *NOW]) == 2
    assert "is not UTF-8" in capsys.readouterr().err
    assert content(LocalFiles(home)) == before
    assert not (tmp_path / "copy" / "metadata").exists()


@pytest.mark.parametrize("secret", ["sasl.password s3cret", "=s3cret"])
def test_a_broken_setting_of_a_client_is_not_repeated(
    secret: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--bootstrap-servers", "h:1", "--to-latest", "--client-config", secret]
    assert main(["checkpoint", "set-offsets", str(home), *words]) == 2
    said = capsys.readouterr().err
    assert "--client-config takes KEY=VALUE. Add" in said
    assert "s3cret" not in said


@pytest.mark.timeout(30)
@pytest.mark.parametrize("name", ["9223372036854775807", "9223372036854775806.compact"])
@pytest.mark.parametrize("command", [("verify",), ("repair",), ("rewind", "--to-batch", "3")])
def test_no_command_counts_to_the_number_that_a_name_claims(
    command: tuple[str, ...], name: str, home: Path, victim: Files
) -> None:
    (Path(victim.url) / "_spark_metadata" / name).write_bytes(b"v1")
    verb, *rest = command
    # A rewind deletes the file. A repair refuses a log whose interval follows from such a name.
    repair = 2 if name.endswith(".compact") else 1
    status = {"verify": 1, "repair": repair, "rewind": 0}[verb]
    assert main(["checkpoint", verb, str(home), *rest, "--sink", victim.url]) == status


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("offsets/5", "v1\n{}\n" + "[" * 100_000),
        ("commits/5", "v1\n" + "[" * 100_000),
        ("metadata", '{"id":' * 100_000),
        (".epochal/journal/0001-rewind/plan.json", '{"version":1,"changes":' + "[" * 100_000),
        ("sources/0/0", "v1\n" + '{"path":' * 100_000),
    ],
)
def test_deep_json_is_an_error_and_not_a_traceback(
    path: str, text: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / path).parent.mkdir(parents=True, exist_ok=True)
    (home / path).write_text(text)
    commands = ("verify", "show", "repair", "migrate-offsets", ("rewind", "--to-batch", "4"))
    for command in commands:
        verb, *rest = [command] if isinstance(command, str) else command
        assert main(["checkpoint", verb, str(home), *rest, *NO_SINK.get(verb, ())]) in (0, 1, 2)
    assert main(["state", "show", str(home)]) in (0, 2)
    assert "Traceback" not in "".join(capsys.readouterr())


@pytest.mark.parametrize("count", ["0", "\u00b2", "many", "9" * 5000])
def test_a_number_of_partitions_that_is_none_is_found_and_refused(
    count: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They ended in a ZeroDivisionError or a ValueError, or `verify` called them healthy."""
    for path in home.glob("offsets/[0-9]*"):
        version, metadata, *rest = path.read_text(encoding="utf-8").split("\n")
        pinned = json.loads(metadata)
        pinned["conf"]["spark.sql.shuffle.partitions"] = count
        path.write_text("\n".join([version, json.dumps(pinned), *rest]), encoding="utf-8")
    assert main(["checkpoint", "verify", str(home), "--no-file-sink"]) == 1
    assert "CONF_INVALID  offsets/5" in capsys.readouterr().out
    assert main(["state", "show", str(home)]) == 2
    assert "which Spark cannot use" in capsys.readouterr().err
    assert main(["checkpoint", "rewind", str(home), "--to-batch", "3", "--no-file-sink"]) == 0
