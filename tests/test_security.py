"""Checks the promises of docs/security.md.

By default no port is open beyond loopback. Other users cannot read files outside of checkpoints.
The content of a checkpoint is never executed.
"""

from __future__ import annotations

import ast
import ipaddress
import os
import re
import socket
import stat
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
import typer
import typer.main
from pyspark import SparkConf, SparkContext
from tests.golden.library import Golden, unpack
from typer.core import TyperGroup

from epochal.cli.main import app
from epochal.connectors.formats import SourceRequest
from epochal.connectors.iceberg.iceberg_options import IcebergSinkOptions
from epochal.connectors.kafka.committer.offset_committer import KafkaGroup
from epochal.connectors.kafka.sink.kafka_sink import KafkaSinkOptions
from epochal.connectors.pubsub.data_source.spark_source import driver_hosts
from epochal.connectors.pubsub.pubsub_options import SourceOptions, source_options
from epochal.connectors.pubsub.server.pubsub_server import ServerSettings
from epochal.connectors.pubsub.sidecar.reservoir import SpillFiles
from epochal.connectors.pubsub.sidecar.sidecar_client import run_directory
from epochal.connectors.pubsub.sidecar.sidecar_messages import PartitionReading
from epochal.continuous.run.query_settings import EngineOptions
from epochal.continuous.spark_job.state_rdd import StateCoordinator
from epochal.errors import OptionError, StorageError
from epochal.evaluator.evaluator_process import _folder as socket_folder
from epochal.files import SILENCE_SECONDS, Bounds, open_files
from epochal.files.local import LocalFiles
from epochal.metrics.run_journal import JournalTail, JournalWriter, run_files
from epochal.metrics.run_records import RunStarted
from epochal.options import read_options
from epochal.rpc.envelope import RpcAddress
from epochal.state.files import rocksdb_snapshot
from epochal.testing.kafka import LISTENERS, _broker_settings
from epochal.tools.verify.findings import Depth
from epochal.tools.verify.verify import verify

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
    "continuous/spark_job/barrier_job.py",
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
    assert ServerSettings.__dataclass_fields__["host"].default == "127.0.0.1"


def test_the_broker_for_trials_listens_on_loopback() -> None:
    ports = dict.fromkeys((*LISTENERS, "CONTROLLER"), 9092)
    settings = dict(line.split("=", 1) for line in _broker_settings(Path("x"), ports).splitlines())
    hosts = {listener.split("//")[1] for listener in settings["listeners"].split(",")}
    assert hosts == {"127.0.0.1:9092"}


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
        [
            "checkpoint",
            "rewind",
            "CHECKPOINT",
            "--to-batch",
            "8",
            "--no-file-sink",
            "--settle-seconds",
            "0",
        ],
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


@pytest.mark.usefixtures("open_umask")
def test_the_socket_of_an_evaluator_is_for_its_user_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert mode(socket_folder(os.getpid(), 64)) == 0o700


def test_only_a_deep_check_lets_rocksdb_open_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    real = rocksdb_snapshot.import_rocksdict

    def noted(*what: str) -> Any:
        opened.append("rocksdict")
        return real(*what)

    monkeypatch.setattr(rocksdb_snapshot, "import_rocksdict", noted)
    place = unpack(Golden("4.3.0", "rocksdb_zip"), tmp_path, relocate=True)
    for depth, expected in ((Depth.QUICK, False), (Depth.NORMAL, False), (Depth.DEEP, True)):
        assert verify(LocalFiles(place.checkpoint), depth=depth).healthy
        assert bool(opened) == expected


def test_a_directory_that_others_can_enter_is_refused(tmp_path: Path) -> None:
    directory = tmp_path / "runs"
    directory.mkdir(mode=0o755)
    directory.chmod(0o755)
    run = RunStarted("q", "r", "orders", "/checkpoint", ("rate",), "noop", 0, 1, "host")
    with pytest.raises(Exception, match="other users must not be able to read"):
        JournalWriter(directory, run)


def test_a_link_in_place_of_a_run_s_file_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "link").symlink_to("secret")
    with pytest.raises(OSError, match="symbolic links"):
        JournalTail(tmp_path / "link").read()


def test_what_a_query_writes_to_its_checkpoint_follows_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        LocalFiles(tmp_path).create("offsets/0", b"v1")
    finally:
        os.umask(before)
    assert (mode(tmp_path / "offsets"), mode(tmp_path / "offsets/0")) == (0o750, 0o640)


def test_the_root_may_be_a_link_and_data_that_a_program_names_may_have_links(
    tmp_path: Path,
) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real/file").write_bytes(b"1")
    (tmp_path / "real/link").symlink_to("file")
    (tmp_path / "root").symlink_to("real")
    assert open_files(str(tmp_path / "root")).read("file") == b"1"
    assert open_files(str(tmp_path / "root"), links=True).read("link") == b"1"
    with pytest.raises(StorageError, match="is a symbolic link"):
        open_files(str(tmp_path / "root")).read("link")


def test_the_bounds_of_the_page_are_those_of_the_tools_and_queries_have_none() -> None:
    assert Bounds() == Bounds(64 << 20, 8 << 30, 256 << 20)
    assert open_files("x").bounds == Bounds(None, None, None)
    assert SILENCE_SECONDS == 30


def test_the_tests_that_the_page_names_exist() -> None:
    root = SOURCE.parent.parent
    page = (root / "docs/security.md").read_text()
    named = set(re.findall(r"`(test_\w+)`", page))
    defined = {
        name
        for path in (root / "tests").rglob("test_*.py")
        for name in re.findall(r"^def (test_\w+)\(", path.read_text(), re.M)
    }
    assert len(named) > 30
    assert named - defined == set()


_SECRET_FIELD = re.compile(r"password$|secret|credentials_json|private_key$|authorization|token_?$")
_SETTINGS = ("settings", "options", "kafka", "catalog", "connection", "option_texts")
_SHOWN = {
    # Marks in a table or a topic, which are no secrets.
    ("EpochNote", "token"),
    ("MarkProperty", "token"),
    ("MarkerText", "token"),
    ("Marker", "token"),
    ("LoggedEpoch", "token"),
    # The settings of Spark that a checkpoint pins, and which are in its offset log.
    ("Opened", "settings"),
    ("RunSpec", "settings"),
}


def fields_in_reprs(path: Path) -> Iterator[tuple[str, str, str]]:
    """Yield class, name and type of each field that a generated repr shows."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.ClassDef):
            continue
        written = any(getattr(each, "name", "") == "__repr__" for each in node.body)
        kinds = [ast.unparse(each) for each in (*node.decorator_list, *node.bases)]
        if written or not any(re.search("dataclass|Struct|NamedTuple", each) for each in kinds):
            continue
        for each in node.body:
            if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
                value = "" if each.value is None else ast.unparse(each.value)
                if "repr=False" not in value:
                    yield node.name, each.target.id, ast.unparse(each.annotation)


def test_no_repr_shows_passwords_keys_or_the_settings_of_a_client() -> None:
    shown = {
        (kind, name)
        for path in modules()
        for kind, name, of in fields_in_reprs(path)
        if _SECRET_FIELD.search(name)
        or (name in _SETTINGS and re.fullmatch(r"(Mapping|dict)\[str, str\]", of))
    }
    assert shown == _SHOWN


def test_what_a_source_or_sink_is_opened_with_can_be_logged() -> None:
    secrets = {"kafka.sasl.password": "s3cret", "catalog.token": "s3cret", "table": "a.b"}
    kafka = read_options(KafkaSinkOptions, {"kafka.sasl.password": "s3cret"}, of="kafka")
    iceberg = read_options(
        IcebergSinkOptions, {"table": "a.b", "catalog.token": "s3cret"}, of="iceberg"
    )
    place = RpcAddress("host", 1, b"s3cret", b"s3cret", b"s3cret")
    options = SourceOptions(subscription_id="sub", credentials_json="s3cret")
    reading = PartitionReading("run", place, options, 1, 2, 3, 4, 5.0, 6, 7, {})
    group = KafkaGroup("group", "host:9092", settings=secrets)
    request = SourceRequest("kafka", secrets, None, LocalFiles("x"), 0, 1)
    for value in (kafka, iceberg, place, reading, group, request):
        assert "s3cret" not in repr(value), type(value)


def test_an_address_of_storage_with_a_password_is_refused_and_not_repeated() -> None:
    for url in ("s3a://KEY:s3cret@bucket/x", "s3a://K:s3/cret@bucket/x", "webhdfs://u:s3cret@h/x"):
        with pytest.raises(OptionError) as refusal:
            open_files(url)
        assert "cret" not in str(refusal.value)
    for url in (
        "hdfs://a:8020,b:8020/x@y",
        "abfss://box@a.dfs.core.windows.net/x",
        "webhdfs://h:1",
    ):
        assert open_files(url).url == url


def test_the_endpoint_of_a_pubsub_source_listens_where_executors_need_it() -> None:
    def hosts(**given: str) -> tuple[str, str]:
        needed = {"projectId": "p", "subscriptionId": "s"}
        return driver_hosts(source_options({**needed, **given}, {}))

    assert hosts() == ("127.0.0.1", "127.0.0.1")
    assert hosts(driverHost="10.0.0.7") == ("10.0.0.7", "10.0.0.7")
    assert hosts(driverBindHost="10.0.0.7") == ("10.0.0.7", "10.0.0.7")
    assert hosts(driverHost="d", driverBindHost="0.0.0.0") == ("d", "0.0.0.0")


def test_the_state_coordinator_of_a_local_master_listens_on_loopback() -> None:
    conf = SparkConf(loadDefaults=False).setMaster("local[2]").set("spark.driver.host", "10.9.9.9")
    coordinator = StateCoordinator(cast(SparkContext, SimpleNamespace(getConf=lambda: conf)))
    try:
        assert coordinator.address.host == "127.0.0.1"
        # The port is taken at this address only.
        socket.create_server(("127.0.0.2", coordinator.address.port)).close()
    finally:
        coordinator.stop()


def test_what_builds_the_package_is_pinned() -> None:
    root = SOURCE.parent.parent
    build = tomllib.loads((root / "pyproject.toml").read_text())["build-system"]["requires"]
    [uv] = re.findall(r'pip install --quiet "(uv[^"]*)"', (root / "scripts/setup").read_text())
    assert all(re.fullmatch(r"[a-z]+==[\d.]+", each) for each in [*build, uv])
