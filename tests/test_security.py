"""Checks the promises of docs/security.md.

By default no port is open beyond loopback. Other users cannot read files outside of checkpoints.
The content of a checkpoint is never executed.
"""

from __future__ import annotations

import ast
import ipaddress
import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import typer
import typer.main
from tests.golden.library import Golden, unpack
from typer.core import TyperGroup

from epochal.cli.main import app
from epochal.connectors.pubsub.server.pubsub_server import Wanted
from epochal.connectors.pubsub.sidecar.sidecar_client import run_directory
from epochal.connectors.pubsub.sidecar.spill import SpillFiles
from epochal.continuous.run.query_settings import EngineOptions
from epochal.metrics.run_journal import JournalWriter, run_files
from epochal.metrics.run_records import RunStarted

SOURCE = Path(__file__).resolve().parent.parent / "src" / "epochal"

EXECUTING = {"pickle", "cloudpickle", "dill", "marshal", "shelve", "joblib"}
CARRIES_CODE = {
    # The user's processor, from the driver to the tasks of the same run.
    "continuous/operators/processor/transform_with_state.py",
    # The user's Python functions in a DataFrame, pickled by PySpark in the same program.
    "continuous/catalyst/python_nodes.py",
    "continuous/operators/stateless/python_functions.py",
    # Where Spark is to run a task: written, and read back by Spark's own workers.
    "continuous/spark_job/placement.py",
    # `epochal run FILE`: the program that the user names.
    "cli/run_program.py",
    # The question about a worker's versions, a constant: it must run where `epochal` is missing.
    "connectors/worker_python.py",
    "continuous/spark_job/worker_probe.py",
}


def commands(command: Any, path: str = "epochal") -> Iterator[tuple[str, Any]]:
    if isinstance(command, TyperGroup):
        context = typer.Context(command)
        for name in command.list_commands(context):
            yield from commands(command.get_command(context, name), f"{path} {name}")
    else:
        yield path, command


def test_every_command_that_listens_does_so_on_loopback_unless_told_otherwise() -> None:
    defaults = {
        path: parameter.default
        for path, command in commands(typer.main.get_command(app))
        for parameter in command.params
        if {"--host", "--metrics-host"} & set(parameter.opts)
    }
    assert set(defaults) == {"epochal dashboard", "epochal kafka lag", "epochal pubsub serve"}
    assert all(ipaddress.ip_address(host).is_loopback for host in defaults.values()), defaults


def test_engine_and_embedded_server_listen_on_loopback_unless_told_otherwise() -> None:
    assert EngineOptions().metrics_host == "127.0.0.1"
    assert EngineOptions().metrics_port is None
    assert Wanted.__dataclass_fields__["host"].default == "127.0.0.1"


def modules() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def executing(path: Path) -> Iterator[str]:
    """Return the imports and calls of a module that could execute what it reads."""
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Import(names=names):
                yield from (each.name for each in names if each.name.split(".")[0] in EXECUTING)
            case ast.ImportFrom(module=module, names=names):
                named = {*(module or "").split("."), *(each.name for each in names)}
                yield from sorted(named & EXECUTING)
                yield from (each.name for each in names if "Pickle" in each.name)
            case ast.Call(func=ast.Name(id="eval" | "exec" | "compile" | "__import__" as name)):
                yield name


def test_nothing_is_unpickled_or_evaluated_but_the_query_s_own_code() -> None:
    found = {path.relative_to(SOURCE).as_posix(): sorted(executing(path)) for path in modules()}
    assert {name for name, what in found.items() if what} == CARRIES_CODE


AUDITED = """
import sys
from epochal.cli.main import main
def forbid(event, arguments):
    if event in ("pickle.find_class", "os.system", "os.exec", "subprocess.Popen"):
        raise RuntimeError(f"{event} {arguments}"[:200])
sys.addaudithook(forbid)
sys.exit(main())
"""


@pytest.mark.parametrize(
    "words",
    [
        ["checkpoint", "show", "CHECKPOINT", "--json"],
        ["checkpoint", "verify", "CHECKPOINT", "--json"],
        ["checkpoint", "rewind", "CHECKPOINT", "--to-batch", "8", "--settle-seconds", "0"],
        ["state", "read", "CHECKPOINT", "--json"],
        ["state", "stats", "CHECKPOINT", "--json"],
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_no_tool_unpickles_or_starts_anything(words: list[str], tmp_path: Path) -> None:
    golden = unpack(Golden("4.3.0", "file_sink_counts"), tmp_path)
    place = str(golden.base / "checkpoint")
    named = [place if word == "CHECKPOINT" else word for word in words]
    run = subprocess.run(
        [sys.executable, "-c", AUDITED, *named], capture_output=True, text=True, cwd=tmp_path
    )
    assert (run.returncode, run.stderr) == (0, "")


@pytest.fixture
def open_umask() -> Iterator[None]:
    """Set the umask to 0, as a careless user may have it."""
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.usefixtures("open_umask")
def test_what_a_query_tells_of_itself_is_for_its_user_alone(tmp_path: Path) -> None:
    directory = tmp_path / "runs"
    run = RunStarted("q", "r", "orders", "/checkpoint", ("rate",), "noop", 0, 1, "host")
    writer = JournalWriter(directory, run)
    (file,) = run_files(directory)
    assert (mode(directory), mode(file)) == (0o700, 0o600)
    writer.close()


@pytest.mark.usefixtures("open_umask")
def test_sidecars_keep_sockets_and_spilled_rows_where_nobody_else_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert mode(run_directory()) == 0o700
    spilled = SpillFiles(tmp_path / "spill")
    spilled.write(pa.record_batch({"data": [b"secret"]}))
    assert mode(tmp_path / "spill") == 0o700


def test_a_directory_that_others_can_enter_is_refused(tmp_path: Path) -> None:
    directory = tmp_path / "runs"
    directory.mkdir(mode=0o755)
    directory.chmod(0o755)
    run = RunStarted("q", "r", "orders", "/checkpoint", ("rate",), "noop", 0, 1, "host")
    with pytest.raises(Exception, match="other users must not be able to read"):
        JournalWriter(directory, run)
