"""House rules as tests: sizes, layers, purity, and words that do not belong in the tree."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "epochal"

MAX_MODULE_LINES = 500
MAX_FUNCTION_LINES = 70

LAYERS: list[set[str]] = [
    {"errors", "options", "clock", "files", "metrics"},
    {"checkpoint", "state", "rpc", "epoch"},
    {"continuous", "connectors", "spark", "kafka", "pubsub", "testing"},
    {"cli", "dashboard", "demo"},
]

PURE_MODULES = [
    "checkpoint/entries.py",
    "checkpoint/jackson.py",
    "checkpoint/layout.py",
    "checkpoint/pinned.py",
    "checkpoint/restart.py",
    "connectors/kafka/consumer_settings.py",
    "connectors/kafka/decide.py",
    "connectors/kafka/exposition.py",
    "connectors/kafka/intake.py",
    "connectors/kafka/lag.py",
    "connectors/kafka/offsets.py",
    "connectors/kafka/producer_settings.py",
    "connectors/kafka/reader_rows.py",
    "connectors/kafka/settings.py",
    "connectors/kafka/sink_marker.py",
    "connectors/kafka/sink_rows.py",
    "connectors/kafka/source_offsets.py",
    "connectors/kafka/source_options.py",
    "connectors/kafka/starting.py",
    "connectors/pubsub/grants.py",
    "connectors/pubsub/reservoir.py",
    "connectors/pubsub/seen.py",
    "connectors/pubsub/sidecar_messages.py",
    "connectors/pubsub/leases.py",
    "connectors/pubsub/payloads.py",
    "connectors/pubsub/server/broker.py",
    "connectors/pubsub/server/deliveries.py",
    "connectors/pubsub/server/filters.py",
    "connectors/pubsub/server/parts.py",
    "connectors/pubsub/server/refusals.py",
    "connectors/pubsub/server/wire.py",
    "connectors/pubsub/statuses.py",
    "continuous/exchange.py",
    "continuous/frames.py",
    "continuous/pruning.py",
    "continuous/split.py",
    "continuous/task.py",
    "epoch/committed.py",
    "epoch/coordinator.py",
    "epoch/effects.py",
    "epoch/manifest.py",
    "epoch/messages.py",
    "epoch/recovery.py",
    "continuous/plan.py",
    "rpc/framing.py",
    "rpc/messages.py",
    "state/coordinator.py",
    "state/plan.py",
    "state/versions.py",
    "state/rows.py",
    "state/format.py",
    "state/codecs.py",
    "state/murmur.py",
    "state/types.py",
]
EFFECTFUL = {
    "os",
    "io",
    "socket",
    "time",
    "threading",
    "subprocess",
    "random",
    "uuid",
    "shutil",
    "zmq",
}


def modules() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def name_of(path: Path) -> str:
    return path.relative_to(SOURCE).as_posix()


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def layer_of(part: str) -> int | None:
    return next((n for n, layer in enumerate(LAYERS) if part in layer), None)


def test_no_module_is_longer_than_500_lines() -> None:
    lengths = {name_of(path): len(path.read_text().splitlines()) for path in modules()}
    assert {name: n for name, n in lengths.items() if n > MAX_MODULE_LINES} == {}


def test_no_function_is_longer_than_70_lines() -> None:
    long = {}
    for path in modules():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > MAX_FUNCTION_LINES:
                    long[f"{name_of(path)}:{node.name}"] = lines
    assert long == {}


def test_lower_layers_never_import_upper_ones() -> None:
    wrong = []
    for path in modules():
        mine = layer_of(path.relative_to(SOURCE).parts[0].removesuffix(".py"))
        for module in imported(path):
            if mine is not None and module.startswith("epochal."):
                theirs = layer_of(module.split(".")[1])
                if theirs is not None and theirs > mine:
                    wrong.append(f"{name_of(path)} imports {module}")
    assert wrong == []


@pytest.mark.parametrize("name", PURE_MODULES)
def test_deciding_modules_import_nothing_that_acts(name: str) -> None:
    roots = {module.split(".")[0] for module in imported(SOURCE / name)}
    assert roots & EFFECTFUL == set()


def test_only_the_spark_package_imports_pyspark() -> None:
    # The package itself only names types of it, for checkers; the demo is a user's program.
    allowed = ("__init__.py", "spark/", "kafka/", "connectors/", "continuous/", "testing/", "demo/")
    wrong = [
        name_of(path)
        for path in modules()
        if any(module.split(".")[0] in ("pyspark", "py4j") for module in imported(path))
        and not name_of(path).startswith(allowed)
    ]
    assert wrong == []


def test_every_module_says_what_it_is_for() -> None:
    silent = [
        name_of(path) for path in modules() if not ast.get_docstring(ast.parse(path.read_text()))
    ]
    assert silent == []


def test_nothing_in_the_tree_names_one_machine() -> None:
    tracked = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True
    ).stdout.decode()
    machine = re.compile(r"/(?:work/(?:main|shared)|root/|home/[a-z]+/)")
    named = []
    for name in tracked.split("\0"):
        path = ROOT / name
        if name and path.is_file() and path.suffix not in (".xz", ".png", ".lock"):
            text = path.read_text(errors="replace")
            if name != "tests/test_tidy.py" and machine.search(text):
                named.append(name)
    assert named == []


def test_importing_the_tools_does_not_import_pyspark() -> None:
    code = (
        "import sys, epochal, epochal.checkpoint, epochal.state, epochal.cli.main; "
        "print(sorted(m for m in sys.modules if m.split('.')[0] in ('pyspark', 'py4j')))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
