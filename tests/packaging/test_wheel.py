"""The wheel, installed by pip into a clean environment: complete, and no more than asked for."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
import typer
import typer.main
from tests.golden.library import Golden, unpack
from tests.packaging.environments import (
    ROOT,
    VERSIONS,
    Environment,
    build_wheel,
    done,
    installed,
    installed_extra,
    interpreter,
)
from typer.core import TyperGroup

from epochal.cli.main import app

pytestmark = pytest.mark.long  # environments are made and filled from the registry

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

IMPORTS = {
    "spark": "import pyspark, pandas, epochal.continuous.run.engine, "
    "epochal.connectors.pubsub.data_source.register",
    "objectstore": "import obstore, epochal.files.objects",
    "kafka": "import confluent_kafka, epochal.connectors.kafka.kafka_client",
    "delta": "import deltalake, epochal.connectors.delta.delta_sink",
    "pubsub": "import epochal.connectors.pubsub.server.pubsub_server, "
    "epochal.connectors.pubsub.publish.publisher, "
    "epochal.connectors.pubsub.pull.streaming_pull, fastavro, ptars",
    "rocksdb": "import rocksdict, epochal.state.store.rocksdb_directory",
    "dashboard": "import epochal.dashboard.app, epochal.dashboard.dashboard_server",
    "metrics": "import opentelemetry.trace, epochal.metrics.otel_spans",
    "postgres": "import psycopg, epochal.connectors.postgres.postgres_sink",
    "iceberg": "import epochal.connectors.iceberg.iceberg_sink, pyiceberg.catalog.sql",
    "registry": "import epochal.connectors.schema_registry.registry_avro, fastavro, ptars",
}
IMPORTS["all"] = "; ".join(IMPORTS.values())
"""What each extra must make importable, alone."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def clean(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """The wheel without any extra."""
    home = tmp_path_factory.mktemp("clean") / "venv"
    return installed(home, Path(sys.executable), wheel)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    golden = unpack(Golden("4.3.0", "file_sink_counts"), tmp_path_factory.mktemp("golden"))
    return golden.base / "checkpoint"


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    tracked = done(["git", "ls-files", "src/epochal"], cwd=ROOT).split()
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {name.removeprefix("src/") for name in tracked} - names == set()
    assert {name.split("/")[0] for name in names} == {"epochal", wheel.name[:13] + ".dist-info"}
    assert [name for name in names if name.endswith((".pyc", ".so"))] == []


def test_the_wheel_says_what_it_is(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    (metadata,) = [name for name in archive.namelist() if name.endswith("/METADATA")]
    text = archive.read(metadata).decode()
    assert f"Requires-Python: {PROJECT['requires-python']}" in text
    assert set(re.findall(r"^Provides-Extra: (.+)$", text, re.M)) == set(IMPORTS)
    assert "License-Expression: Apache-2.0" in text
    points = archive.read(metadata.replace("METADATA", "entry_points.txt")).decode()
    assert "[pytest11]\nepochal = epochal.testing.pytest_plugin\n" in points


def groups(command: TyperGroup) -> list[str]:
    return command.list_commands(typer.Context(command))


def test_help_is_complete(clean: Environment) -> None:
    root = typer.main.get_command(app)
    assert isinstance(root, TyperGroup)
    said = clean.epochal("--help")
    assert [name for name in groups(root) if not re.search(rf"\b{name}\b", said)] == []
    for name in groups(root):
        child = root.get_command(typer.Context(root), name)
        helped = clean.epochal(name, "--help")
        if isinstance(child, TyperGroup):
            assert [each for each in groups(child) if each not in helped] == []


def test_the_tools_work_without_pyspark(clean: Environment, checkpoint: Path) -> None:
    shown = json.loads(clean.epochal("checkpoint", "show", checkpoint, "--json"))
    assert shown["batches"][-1]["batch_id"] == 10
    assert json.loads(clean.epochal("checkpoint", "verify", checkpoint, "--json"))["healthy"]
    rows = clean.epochal("state", "read", checkpoint, "--json").splitlines()
    assert {*json.loads(rows[0])} == {"partition_id", "key", "value"}


@pytest.mark.parametrize(
    ("words", "extra"),
    [
        (["kafka", "lag", "--group", "g", "--bootstrap-servers", "127.0.0.1:1"], "kafka"),
        (["pubsub", "serve", "--port", "0"], "pubsub"),
        (["dashboard", "--port", "0"], "dashboard"),
        (["demo"], "spark"),
        (["checkpoint", "show", "s3://bucket/checkpoint"], "objectstore"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_what_needs_an_extra_names_it(clean: Environment, words: list[str], extra: str) -> None:
    said = clean.epochal(*words, code=2)
    assert re.search(rf"pip install 'epochal\[[a-z,]*{extra}[a-z,]*\]'", said), said
    assert "Traceback" not in said


TOOLS = """
import sys
from epochal.cli.main import main
seen = []
def watch(event, arguments):
    if event == "import" and arguments[0].split(".")[0] in ("pyspark", "py4j", "pandas"):
        seen.append(arguments[0])
sys.addaudithook(watch)
try:
    main()
except SystemExit:
    pass
sys.stderr.write(f"IMPORTED {seen}")
"""


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["checkpoint", "show", "CHECKPOINT"],
        ["checkpoint", "verify", "CHECKPOINT"],
        ["checkpoint", "repair", "CHECKPOINT", "--no-file-sink", "--settle-seconds", "0"],
        ["state", "show", "CHECKPOINT"],
        ["state", "read", "CHECKPOINT"],
        [
            "state",
            "repartition",
            "CHECKPOINT",
            "--partitions",
            "4",
            "--no-file-sink",
            "--settle-seconds",
            "0",
        ],
    ],
    ids=" ".join,
)
def test_no_tool_imports_pyspark_where_it_is_installed(words: list[str], checkpoint: Path) -> None:
    named = [str(checkpoint) if word == "CHECKPOINT" else word for word in words]
    run = subprocess.run([sys.executable, "-c", TOOLS, *named], capture_output=True, text=True)
    assert run.stderr == "IMPORTED []", run.stderr


@pytest.mark.parametrize("version", VERSIONS)
def test_pip_installs_the_wheel(
    version: str, wheel: Path, checkpoint: Path, tmp_path: Path
) -> None:
    made = installed(tmp_path / "venv", interpreter(version), wheel)
    test_help_is_complete(made)
    test_the_tools_work_without_pyspark(made, checkpoint)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("extra", IMPORTS)
def test_every_extra_brings_what_its_part_needs(
    version: str, extra: str, wheel: Path, tmp_path: Path
) -> None:
    made = installed_extra(tmp_path / "venv", interpreter(version), wheel, extra)
    made.run(IMPORTS[extra])
    assert "Usage" in made.epochal("--help")
