"""Damaged input of any kind: one clear line that names the file, no traceback, no change."""

import os
import shutil
from pathlib import Path

import pytest
from tests.golden.library import Golden, unpack
from tests.unit.checkpoint.trees import digest_of

from epochal.checkpoint.entries import CommitEntry, CommitFormat, OffsetEntry, OffsetFormat
from epochal.cli import checkpoint as commands
from epochal.cli.main import main
from epochal.files import Files
from epochal.files.local import LocalFiles
from epochal.testing.files import FaultyFiles

FILES = {
    "metadata": "",
    "offsets/5": "offsets",
    "offsets/10": "offsets",
    "commits/5": "commits",
    "commits/10": "commits",
    "sources/0/5": "sources/0",
    "state/0/0/9.delta": "",
    "state/0/0/8.snapshot": "",
    "state/0/0/_metadata/schema": "",
    "state/0/_metadata/metadata": "",
}
"""Each kind of file, and the log that `checkpoint log` would read it through."""

BAD = {
    "empty": b"",
    "binary": bytes(range(256)) * 3,
    "not UTF-8": b"v1\n\xff\xfe\xfd",
    "no version": b"hello",
    "version 0": b"v0\n{}",
    "wrong version": b"vv\n{}",
    "future version": b"v99999\n{}",
    "huge version": b"v" + b"9" * 5000,
    "deep JSON": b"v1\n" + b"[" * 100_000,
    "nulls": bytes(4096),
}


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = unpack(Golden("4.3.0", "windowed"), tmp_path_factory.mktemp("windowed"), relocate=True)
    for crc in place.checkpoint.rglob(".*.crc"):
        crc.unlink()
    return place.checkpoint


@pytest.fixture
def checkpoint(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "checkpoint"))


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    status = main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    assert "Traceback" not in out + err
    return status, out, err


def check_commands(
    checkpoint: Path, name: str, log: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = digest_of(checkpoint)
    status, out, err = run(capsys, "checkpoint", "verify", checkpoint)
    kinds = ("error: ", "warning: ", "info: ")
    [finding] = [line for line in out.splitlines() if line.startswith(kinds)]
    assert (status, err) == (0 if finding.startswith("info: ") else 1, "")
    assert finding.endswith(f"  {name}")
    assert "  remedy: " in out
    status, out, _ = run(capsys, "checkpoint", "show", checkpoint)
    assert status in (0, 1)
    if status == 1:
        assert f"problem: {name}: " in out
    if log:
        status, _, err = run(capsys, "checkpoint", "log", checkpoint / log, "--json")
        assert status == 2
        assert f"{checkpoint / name}" in err
        assert err.count("\n") == 1
    assert digest_of(checkpoint) == before


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("name", FILES)
def test_names_a_file_whose_bytes_are_wrong(
    name: str, bad: str, checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (checkpoint / name).write_bytes(BAD[bad])
    check_commands(checkpoint, name, FILES[name], capsys)


@pytest.mark.parametrize("name", [name for name in FILES if name != "state/0/0/_metadata/schema"])
def test_names_a_file_that_was_cut_off(
    name: str, checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = checkpoint / name
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    check_commands(checkpoint, name, FILES[name], capsys)


@pytest.mark.parametrize("name", ["metadata", "offsets", "state"])
def test_reports_a_directory_in_place_of_a_file_and_the_reverse(
    name: str, checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = checkpoint / name
    if path.is_dir():
        shutil.rmtree(path)
        path.write_bytes(b"a file")
    else:
        path.unlink()
        path.mkdir()
    before = digest_of(checkpoint)
    for command in ("show", "verify"):
        status, out, err = run(capsys, "checkpoint", command, checkpoint)
        assert status in (1, 2)
        assert name in out + err
    assert digest_of(checkpoint) == before


@pytest.mark.parametrize("name", FILES)
def test_names_a_file_that_may_not_be_read(
    name: str, checkpoint: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def deny(operation: str, path: str) -> None:
        if (operation, path) == ("read", name):
            raise PermissionError(13, "Permission denied", str(checkpoint / name))

    def open_denied(location: str) -> Files:
        return FaultyFiles(LocalFiles(location), deny)

    monkeypatch.setattr(commands, "open_place", open_denied)
    status, out, err = run(capsys, "checkpoint", "verify", checkpoint)
    assert (status, err) == (1, "")
    assert f"error: FILE_UNREADABLE  {name}\n  " in out
    assert "Permission denied" in out


@pytest.mark.parametrize("command", ["show", "verify", "log"])
def test_reports_a_checkpoint_that_this_user_may_not_list(
    command: str,
    checkpoint: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def deny(operation: str, path: str) -> None:
        if operation == "list":
            raise PermissionError(13, "Permission denied", str(checkpoint / path))

    monkeypatch.setattr(
        commands, "open_place", lambda location: FaultyFiles(LocalFiles(location), deny)
    )
    status, out, err = run(capsys, "checkpoint", command, checkpoint)
    assert (status, out) == (2, "")
    assert f"{checkpoint}" in err
    assert "Permission denied" in err
    assert err.count("\n") == 1


def test_reads_a_directory_that_the_system_denies(checkpoint: Path) -> None:
    """Run as a user without rights: root may read everything, so a child drops its rights."""
    (checkpoint / "commits").chmod(0)
    os.chmod(checkpoint.parent, 0o755)
    child = os.fork()
    if child == 0:
        status = 99
        try:
            if os.getuid() == 0:
                os.setresuid(65534, 65534, 65534)
            status = main(["checkpoint", "verify", str(checkpoint), "--quick", "--json"])
        finally:
            os._exit(status)
    _, code = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(code) in (1, 2)


def test_reads_names_that_are_not_valid_text(
    checkpoint: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    os.mkdir(os.fsencode(checkpoint / "sources") + b"/\xff")
    with open(os.fsencode(checkpoint / "state/0/0") + b"/\xff.delta", "wb") as out:
        out.write(b"?")
    assert main(["checkpoint", "verify", str(checkpoint), "--json"]) == 1
    found, err = capfdbinary.readouterr()
    assert b"STATE_STRAY_FILE" in found
    assert err == b""
    assert main(["checkpoint", "show", str(checkpoint)]) == 0


@pytest.fixture(scope="module")
def long_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("long") / "checkpoint"
    for name in ("offsets", "commits"):
        (root / name).mkdir(parents=True)
    (root / "metadata").write_text('{"id":"53b62e34-0476-452d-8313-c1786e091891"}')
    offsets, commits = OffsetFormat(), CommitFormat()
    commit = commits.serialize(CommitEntry())
    for batch_id in range(10_000):
        entry = OffsetEntry(1, (str(batch_id),), 0, batch_id)
        (root / "offsets" / str(batch_id)).write_bytes(offsets.serialize(entry))
        (root / "commits" / str(batch_id)).write_bytes(commit)
    return root


def test_reads_logs_of_ten_thousand_batches(
    long_log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(capsys, "checkpoint", "verify", long_log, "--no-file-sink")[:2] == (
        0,
        "healthy: 0 findings in 20,001 files, 10,000 batches\n",
    )
    status, out, _ = run(capsys, "checkpoint", "show", long_log, "--limit", 2)
    assert status == 0
    assert "continue with batch 10000" in out
    assert "batches (9,998 older not shown)" in out
    status, out, _ = run(capsys, "checkpoint", "log", long_log / "offsets", "--json")
    assert (status, out.count("\n")) == (0, 10_000)


@pytest.mark.parametrize("name", ["offsets/9223372036854775807", "offsets/999999999999"])
def test_an_astronomical_batch_id_takes_no_longer_than_a_small_one(
    name: str, checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copyfile(checkpoint / "offsets/10", checkpoint / name)
    status, out, _ = run(capsys, "checkpoint", "verify", checkpoint)
    assert status == 1
    assert "OFFSETS_GAP" in out
    assert run(capsys, "checkpoint", "show", checkpoint)[0] == 0


@pytest.mark.parametrize(
    ("group", "options"),
    [
        (("checkpoint", "show"), ()),
        (("checkpoint", "verify"), ()),
        (("checkpoint", "rewind"), ("--to-batch", "1")),
        (("checkpoint", "repair"), ()),
        (("checkpoint", "undo"), ()),
        (("checkpoint", "undo"), ("--list",)),
        (("checkpoint", "undo"), ("--prune",)),
        (("state", "show"), ()),
        (("state", "read"), ()),
        (("state", "get"), ("--key", "{}")),
        (("state", "stats"), ()),
        (("state", "verify"), ()),
        (("state", "put"), ("--key", "{}", "--value", "{}")),
        (("stop",), ()),
    ],
    ids=lambda words: "-".join(words),
)
def test_all_commands_say_the_same_about_a_place_without_a_checkpoint(
    group: tuple[str, ...],
    options: tuple[str, ...],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    for name, told in (
        ("nowhere", ": No such directory. Nothing exists there. Check the path."),
        ("empty", " is not a checkpoint: it contains none of metadata, offsets, commits,"),
        ("file", ": Not a directory. A directory is needed, but there is a file."),
    ):
        status, out, err = run(capsys, *group, tmp_path / name, *options)
        assert (status, out) == (2, "")
        assert err.startswith(f"epochal: {tmp_path / name}{told}")
        assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "file"]
