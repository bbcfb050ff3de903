"""House rules as tests: sizes, layers, purity, and words that do not belong in the tree."""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from scripts.import_graph import import_graph, place_of

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "epochal"

MAX_MODULE_LINES = 500
MAX_FUNCTION_LINES = 70

MAX_MODULES_IN_A_FOLDER = 16

PURE_MODULES = [
    "checkpoint/entries.py",
    "checkpoint/spark_json.py",
    "checkpoint/layout.py",
    "checkpoint/pinned.py",
    "checkpoint/restart.py",
    "connectors/kafka/consumer_settings.py",
    "connectors/kafka/commit_rules.py",
    "connectors/kafka/committer/committer_metrics.py",
    "connectors/kafka/committer/listener_inbox.py",
    "connectors/kafka/committer/lag.py",
    "connectors/kafka/offsets.py",
    "connectors/kafka/producer_settings.py",
    "connectors/kafka/source/reader_rows.py",
    "connectors/kafka/kafka_settings.py",
    "connectors/kafka/sink/sink_marker.py",
    "connectors/kafka/sink/sink_rows.py",
    "connectors/kafka/source/source_offsets.py",
    "connectors/kafka/source/source_options.py",
    "connectors/kafka/source/starting_offsets.py",
    "connectors/pubsub/sidecar/grants.py",
    "connectors/pubsub/sidecar/reservoir.py",
    "connectors/pubsub/sidecar/seen_messages.py",
    "connectors/pubsub/sidecar/sidecar_messages.py",
    "connectors/pubsub/pull/ack_leases.py",
    "connectors/pubsub/publish/payloads.py",
    "connectors/pubsub/server/broker.py",
    "connectors/pubsub/server/deliveries.py",
    "connectors/pubsub/server/filters.py",
    "connectors/pubsub/server/parts.py",
    "connectors/pubsub/server/refusals.py",
    "connectors/pubsub/server/wire.py",
    "connectors/pubsub/statuses.py",
    "continuous/tasks/exchange.py",
    "continuous/tasks/frames.py",
    "continuous/plan/pruning.py",
    "continuous/tasks/key_split.py",
    "continuous/tasks/task.py",
    "epoch/committed.py",
    "epoch/coordinator.py",
    "epoch/effects.py",
    "epoch/manifest.py",
    "epoch/messages.py",
    "epoch/recovery.py",
    "continuous/plan/stages.py",
    "rpc/framing.py",
    "rpc/envelope.py",
    "state/store/store_coordinator.py",
    "state/files/chain.py",
    "state/store/versions.py",
    "state/rows/unsafe_row.py",
    "state/files/delta_snapshot.py",
    "state/files/codecs.py",
    "state/rows/murmur3.py",
    "state/rows/types.py",
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


def test_imports_point_down_the_one_order_of_packages() -> None:
    wrong = [
        f"{module} imports {imported}"
        for module, imports in import_graph(SOURCE).items()
        for imported in sorted(imports)
        if place_of(imported) > place_of(module)
    ]
    assert wrong == []


def test_no_folder_holds_more_modules_than_a_reader_can_take_in() -> None:
    counts = Counter(path.parent for path in modules() if path.name != "__init__.py")
    assert {name_of(folder): n for folder, n in counts.items() if n > MAX_MODULES_IN_A_FOLDER} == {}


def test_no_two_modules_share_a_name() -> None:
    # Errors, commands and test helpers are sorted by topic and take the topic's name. A contract is
    # the same idea everywhere: what the implementations in the folder promise.
    by_topic = ("errors/", "cli/", "testing/")
    places: dict[str, list[str]] = {}
    for path in modules():
        if path.stem not in ("__init__", "contract") and not name_of(path).startswith(by_topic):
            places.setdefault(path.stem, []).append(name_of(path))
    assert {stem: found for stem, found in places.items() if len(found) > 1} == {}


@pytest.mark.parametrize("name", PURE_MODULES)
def test_deciding_modules_import_nothing_that_acts(name: str) -> None:
    roots = {module.split(".")[0] for module in imported(SOURCE / name)}
    assert roots & EFFECTFUL == set()


def test_only_the_engine_and_its_connectors_import_pyspark() -> None:
    # The package itself only names PySpark's types, for checkers. The demo and `epochal run` are or
    # start a user's program.
    allowed = ("__init__.py", "connectors/", "continuous/", "testing/", "demo/", "cli/run_program")
    wrong = [
        name_of(path)
        for path in modules()
        if any(module.split(".")[0] in ("pyspark", "py4j") for module in imported(path))
        and not name_of(path).startswith(allowed)
    ]
    assert wrong == []


def test_every_sleep_in_a_test_says_why_there_is_nothing_to_wait_for() -> None:
    # Tests wait with `eventually`. A sleep is for showing that something does not happen, or for
    # doing something at a random moment; its line says which. Programs in strings are not calls.
    silent = []
    for path in sorted((ROOT / "tests").rglob("*.py")):
        text = path.read_text()
        if "sleep(" not in text or path.name == "waiting.py":
            continue
        tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        commented = {each.start[0] for each in tokens if each.type == tokenize.COMMENT}
        silent += [
            f"{path.relative_to(ROOT)}:{node.lineno}"
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.Call)
            and ast.unparse(node.func) in ("time.sleep", "sleep")
            and node.end_lineno not in commented
        ]
    assert silent == []


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
