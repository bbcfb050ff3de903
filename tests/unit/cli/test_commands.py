"""The basics of the command line: one-line errors, exit codes, lazy commands, tables, programs."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest
from pyspark.sql.streaming import StreamingQuery as SparksQuery

import epochal
from epochal.checkpoint.entries import (
    CommitEntry,
    CommitLog,
    OffsetEntry,
    OffsetLog,
    QueryMetadata,
    SinkMetadata,
)
from epochal.cli.main import describe, main
from epochal.cli.programs import print_check
from epochal.cli.run_program import MOST_LOOKS, EndOfProgram, NotStarted
from epochal.continuous.api.query_handle import StreamingQuery as OurQuery
from epochal.errors import CheckpointError, StorageError
from epochal.files.local import LocalFiles
from epochal.tools.upgrade.upgrade_findings import Impossible, UpgradeDifference, UpgradeReport

QUERY_ID = "53b62e34-0476-452d-8313-c1786e091891"


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A stateless query after three batches, the last of which is not committed."""
    files = LocalFiles(tmp_path / "checkpoint", durable=False)
    QueryMetadata(QUERY_ID).write(files)
    offsets, commits = OffsetLog(files.at("offsets")), CommitLog(files.at("commits"))
    for batch_id in range(3):
        entry = OffsetEntry(
            1, (f'{{"topic":{{"0":{10 * batch_id},"1":7}}}}', None), 0, 1_700_000_000_000 + batch_id
        )
        offsets.add(batch_id, entry)
        if batch_id < 2:
            commits.add(batch_id, CommitEntry())
    return tmp_path / "checkpoint"


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    status = main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    return status, out, err


@pytest.mark.parametrize("flag", ["--version", "-V"])
def test_prints_its_version(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, flag) == (0, f"epochal {epochal.__version__}\n", "")


def test_shows_the_documented_json(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, "checkpoint", "show", checkpoint, "--json")
    shown = json.loads(out)
    assert (status, err) == (0, "")
    assert shown["query_id"] == QUERY_ID
    assert (shown["offset_log_version"], shown["commit_log_version"]) == (1, 1)
    assert shown["batches"][2] == {
        "batch_id": 2,
        "offsets": [{"topic": {"0": 20, "1": 7}}, None],
        "watermark_ms": 0,
        "timestamp_ms": 1_700_000_000_002,
        "conf": {},
        "committed": False,
    }
    assert [batch["committed"] for batch in shown["batches"]] == [True, True, False]
    assert shown["state"] == {"operators": []}
    assert (shown["restart"]["action"], shown["restart"]["batch_id"]) == ("re-run", 2)
    assert shown["restart"]["start"] == shown["batches"][1]["offsets"]
    assert shown["restart"]["end"] == shown["batches"][2]["offsets"]


def test_shows_the_sink_in_use_and_the_one_before_it(
    checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    now = SinkMetadata("orders", '{"batch":2}', "org.example.Delta", "DSv2")
    past = SinkMetadata("old", "-", "org.example.Files", "DSv1", is_active=False)
    CommitLog(str(checkpoint / "commits")).add(
        2, CommitEntry(3, 0, None, {"old": past, "orders": now})
    )
    _, out, _ = run(capsys, "checkpoint", "show", checkpoint, "--json")
    shown = json.loads(out)
    assert shown["commit_log_version"] == 3
    assert [(sink["name"], sink["provider"], sink["active"]) for sink in shown["sinks"]] == [
        ("old", "org.example.Files", False),
        ("orders", "org.example.Delta", True),
    ]
    _, out, _ = run(capsys, "checkpoint", "show", checkpoint)
    lines = [line.split() for line in out.splitlines()]
    assert ["old", "org.example.Files", "DSv1", "no"] in lines
    assert ["orders", "org.example.Delta", "DSv2", "yes"] in lines


def test_shows_what_a_restart_would_do(
    checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, _ = run(capsys, "checkpoint", "show", checkpoint)
    assert status == 0
    assert "a restart would  run batch 2 again" in out
    assert "\nfrom             0: topic 0:10 1:7; 1: -\n" in out
    assert "\nto               0: topic 0:20 1:7; 1: -\n" in out
    assert "2      no         2023-11-14T22:13:20.002Z  0: topic 0:20 1:7; 1: -\n" in out


def test_shows_every_pinned_setting(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    conf = {"spark.sql.shuffle.partitions": "3", "spark.other": "a b"}
    OffsetLog(str(checkpoint / "offsets")).add(3, OffsetEntry(1, ("{}", None), conf=conf))
    _, out, _ = run(capsys, "checkpoint", "show", checkpoint)
    shown = out[out.index("settings pinned by batch 3\n") :].splitlines()
    assert shown[1:3] == ["spark.other = a b", "spark.sql.shuffle.partitions = 3"]


def test_compares_the_offsets_of_two_batches_part_by_part(
    checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ("checkpoint", "diff", checkpoint, "--batch", 0, "--batch", 2, "--json")
    status, out, _ = run(capsys, *command)
    assert status == 1
    assert json.loads(out)["differences"] == [
        {"path": "offsets.0.topic.0", "before": 0, "after": 20},
        {"path": "timestamp_ms", "before": 1_700_000_000_000, "after": 1_700_000_000_002},
        {"path": "committed", "before": True, "after": False},
    ]


def test_an_entry_that_cannot_be_read_differs_in_few_words(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = shutil.copytree(checkpoint, tmp_path / "other")
    newest = max(int(path.name) for path in (other / "offsets").iterdir() if path.name.isdigit())
    (other / "offsets" / str(newest)).write_bytes(b"v1")
    assert main(["checkpoint", "diff", str(other), str(checkpoint)]) == 1
    shown = capsys.readouterr().out
    assert re.search(rf"batch {newest} +offset \? → .*\n", shown)
    assert re.search(r"\n +pinned settings: - → \d+\n", shown)
    assert "{" not in shown


def test_a_commit_that_cannot_be_read_is_neither_there_nor_missing(
    checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    newest = max(
        int(path.name) for path in (checkpoint / "commits").iterdir() if path.name.isdigit()
    )
    (checkpoint / "commits" / str(newest)).write_bytes(b"")
    assert main(["checkpoint", "show", str(checkpoint)]) == 1
    shown = capsys.readouterr().out
    assert re.search(rf"\n{newest} +\? +20", shown)
    assert re.search(rf"\n{newest - 1} +yes +20", shown)


def test_check_quotes_a_part_of_the_error_as_such(capsys: pytest.CaptureFixture[str]) -> None:
    found = UpgradeDifference(
        "operator 0, key", "user", "user, id", Impossible("why"), "was written by"
    )
    print_check(UpgradeReport("here", (found,), (), "Epochal"))
    told = "  Epochal would refuse to start, with an error that contains: was written by\n"
    assert told in capsys.readouterr().out


def test_finds_no_difference_between_a_checkpoint_and_itself(
    checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, _ = run(capsys, "checkpoint", "diff", checkpoint, checkpoint)
    assert (status, out) == (0, "no difference\n")


def test_verifies_with_the_documented_json_and_exit_codes(
    checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, _ = run(capsys, "checkpoint", "verify", checkpoint, "--json")
    assert (status, json.loads(out)) == (
        0,
        {"healthy": True, "sink": "not checked", "findings": []},
    )
    (checkpoint / "metadata").unlink()
    status, out, _ = run(capsys, "checkpoint", "verify", checkpoint, "--json")
    report = json.loads(out)
    assert (status, report["healthy"]) == (1, False)
    assert [sorted(each) for each in report["findings"]] == [
        ["code", "message", "path", "remedy", "severity"]
    ]
    assert report["findings"][0]["code"] == "METADATA_MISSING"


def test_accepts_a_url_with_a_scheme(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "checkpoint", "show", f"file://{checkpoint}", "--json")
    assert (status, json.loads(out)["query_id"]) == (0, QUERY_ID)


@pytest.mark.parametrize(
    "arguments",
    [
        ("checkpoint", "show", "{tmp}/nothing"),
        ("checkpoint", "show", "{tmp}"),
        ("checkpoint", "show", "{tmp}/checkpoint/metadata"),
        ("checkpoint", "show", "ftp://somewhere/checkpoint"),
        ("checkpoint", "log", "{tmp}/checkpoint"),
        ("checkpoint", "verify", "{tmp}/checkpoint", "--deep", "--quick"),
        ("checkpoint", "verify", "{tmp}/checkpoint", "--sink", "{tmp}"),
        ("checkpoint", "diff", "{tmp}/checkpoint"),
        ("checkpoint", "diff", "{tmp}/checkpoint", "--batch", "0", "--batch", "9"),
    ],
    ids=" ".join,
)
def test_turns_an_error_into_one_line_and_exit_code_2(
    arguments: tuple[str, ...], checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    del checkpoint
    status, out, err = run(capsys, *(each.replace("{tmp}", str(tmp_path)) for each in arguments))
    assert (status, out) == (2, "")
    assert err.startswith("epochal: ")
    assert err.count("\n") == 1
    assert err.endswith(".\n"), "an error ends with what to do"


def test_shows_the_traceback_when_debugging(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        main(["--debug", "checkpoint", "show", str(tmp_path / "nothing")])


def test_names_the_file_and_a_remedy_for_system_errors() -> None:
    denied = PermissionError(13, "Permission denied", "/data/offsets/3")
    assert describe(denied).startswith("/data/offsets/3: Permission denied. Run as the user")
    assert describe(OSError(5, "Input/output error", "/data/x")).startswith(
        "/data/x: Input/output error. Check that the storage"
    )
    assert describe(StorageError("s3://b/x", "timed out")).startswith(
        "s3://b/x: timed out. Check that the storage"
    )
    assert describe(CheckpointError("one\n  two")) == "one two"


def test_stops_quietly_when_the_reader_of_the_output_ends(checkpoint: Path) -> None:
    command = [sys.executable, "-m", "epochal.cli.main", "checkpoint", "log", "--json"]
    with subprocess.Popen(
        [*command, str(checkpoint / "offsets")], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode in (0, 141)


def test_showing_a_checkpoint_imports_no_columns_and_no_rich(checkpoint: Path) -> None:
    script = (
        "import sys; from epochal.cli.main import main; "
        f"main(['checkpoint', 'show', {str(checkpoint)!r}]); "
        "heavy = {'numpy', 'pyarrow', 'rich', 'msgspec', 'pyspark', 'pydantic', 'obstore'}; "
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stderr == "[]\n"


def test_a_missing_program_is_rejected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", str(tmp_path / "none.py")]) == 2
    assert capsys.readouterr().err.endswith(
        "none.py is not a file. Name a Python program that starts queries.\n"
    )


@pytest.mark.parametrize("setting", ["spark.ui.enabled", "=false"])
def test_a_setting_without_a_name_or_a_value_is_rejected(
    setting: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "program.py"
    program.write_text("")
    assert main(["run", "--conf", setting, str(program)]) == 2
    assert "--conf takes KEY=VALUE" in capsys.readouterr().err


@pytest.mark.parametrize("kind", [SparksQuery, OurQuery])
def test_it_can_be_asked_whatever_a_query_can_be_asked(kind: type) -> None:
    public = {name for name in vars(kind) if not name.startswith("_")}
    assert public - set(dir(NotStarted("a name"))) == set()


@pytest.mark.parametrize(
    "loop",
    [
        "while query.last_progress is None: pass",
        "while query.lastProgress is None: query.awaitTermination(1)",
        "while not query.recent_progress: pass",
        "while query.exception() is None: query.process_all_available()",
        "while not query.status['isTriggerActive']: pass",
    ],
)
def test_a_program_that_waits_for_rows_is_ended(loop: str) -> None:
    guarded = f"try:\n    {loop}\nexcept Exception:\n    pass"
    with pytest.raises(EndOfProgram):
        exec(guarded, {"query": NotStarted("")})


def test_a_program_may_look_at_a_query_that_has_ended() -> None:
    query = NotStarted("sums")
    for _ in range(MOST_LOOKS):
        assert query.await_termination()
    query.stop()
    assert query.name == "sums"


@pytest.mark.parametrize(
    ("missing", "words", "named", "extras"),
    [
        ({"grpc"}, [], "grpc, which is", "spark,pubsub"),
        ({"pyspark", "grpc"}, [], "pyspark and grpc, which are", "spark,pubsub"),
        ({"confluent_kafka", "grpc"}, ["--kafka"], "confluent_kafka, which is", "spark,kafka"),
        ({"deltalake"}, ["--table", "delta"], "deltalake, which is", "spark,pubsub,delta"),
    ],
)
def test_names_missing_packages_and_what_installs_them_before_it_starts_spark(
    missing: set[str],
    words: list[str],
    named: str,
    extras: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = importlib.util.find_spec

    def find_spec(name: str) -> ModuleSpec | None:
        return None if name in missing else found(name)

    monkeypatch.setattr("epochal.cli.demo.find_spec", find_spec)
    monkeypatch.setitem(sys.modules, "epochal.demo.demo_run", None)  # starting would fail
    directory = tmp_path / "orders"
    assert main(["demo", "--directory", str(directory), *words]) == 2
    printed, said = capsys.readouterr(), f"The demo needs {named} not installed."
    told = f"epochal: {said} Run `pip install 'epochal[{extras}]'`."
    assert (printed.out, " ".join(printed.err.split())) == ("", told)
    assert not directory.exists()
