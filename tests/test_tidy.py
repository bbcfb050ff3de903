"""Enforces the rules of the code base: sizes, layers, purity, names and docstrings."""

from __future__ import annotations

import ast
import io
import re
import subprocess
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from scripts.import_graph import import_graph, place_of
from scripts.run_tests import PARTS
from tests.mutations import FAULTS, planted

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "epochal"

MAX_MODULE_LINES = 500
MAX_FUNCTION_LINES = 70

DECIDING = {
    "checkpoint/restart.py",
    "connectors/staging/epoch_marker.py",
    "connectors/iceberg/iceberg_snapshots.py",
    "connectors/kafka/offsets.py",
    "connectors/kafka/source/source_offsets.py",
    "connectors/delta/delta_rules.py",
    "connectors/dead_letters/dead_letter_rules.py",
    "connectors/postgres/postgres_columns.py",
    "connectors/postgres/postgres_failures.py",
    "connectors/pubsub/pull/ack_leases.py",
    "connectors/pubsub/server/broker.py",
    "connectors/pubsub/server/deliveries.py",
    "connectors/pubsub/sidecar/grants.py",
    "connectors/table_columns.py",
    "connectors/tables/compaction.py",
    "connectors/tables/table_epochs.py",
    "continuous/tasks/exchange.py",
    "continuous/tasks/stage_times.py",
    "continuous/tasks/task.py",
    "epoch/coordinator.py",
    "epoch/epoch_files/state_chain.py",
    "epoch/manifest.py",
    "epoch/event_time/query_watermark.py",
    "epoch/event_time/units.py",
    "epoch/recovery.py",
    "errors/failures.py",
    "state/files/chain.py",
    "state/rows/murmur3.py",
    "state/store/versions.py",
    "tools/switch/boundaries.py",
    "tools/switch/compare_rows.py",
}
"""Modules that decide something durable. They must call themselves pure."""

EFFECTFUL = {"os", "socket", "time", "threading", "subprocess", "random", "uuid", "shutil", "zmq"}


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


def test_no_two_modules_share_a_name() -> None:
    # Errors, commands and test helpers are modules per topic and have the topic's name. `contract`
    # means the same in every folder: what the folder's implementations promise.
    by_topic = ("errors/", "cli/", "testing/")
    places: dict[str, list[str]] = {}
    for path in modules():
        if path.stem not in ("__init__", "contract") and not name_of(path).startswith(by_topic):
            places.setdefault(path.stem, []).append(name_of(path))
    assert {stem: found for stem, found in places.items() if len(found) > 1} == {}


def test_no_two_public_classes_share_a_name() -> None:
    homes: dict[str, list[str]] = {}
    for path in modules():
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(name_of(path))
    assert {name: places for name, places in homes.items() if len(places) > 1} == {}


def pure_modules() -> list[str]:
    """The modules whose docstring says that they are pure, without exceptions."""
    found = []
    for path in modules():
        docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
        if re.search(r"\bPure\b(?!, (?:except|given))|\bmodule is pure\b", docstring):
            found.append(name_of(path))
    return found


@pytest.mark.parametrize("name", pure_modules())
def test_a_module_that_calls_itself_pure_does_nothing_that_acts(name: str) -> None:
    tree = ast.parse((SOURCE / name).read_text())
    roots = {module.split(".")[0] for module in imported(SOURCE / name)}
    calls = {
        node.func.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    assert roots & EFFECTFUL == set()
    assert calls & {"open", "print", "input"} == set()


def test_the_modules_that_decide_call_themselves_pure() -> None:
    assert DECIDING - set(pure_modules()) == set()


def test_every_fault_that_can_be_planted_has_its_place() -> None:
    unchanged = []
    for fault in FAULTS:
        _, before, after = planted((SOURCE / fault.module).read_text(), fault)
        if before == after:
            unchanged.append(str(fault))
    assert unchanged == []


def test_only_the_engine_and_its_connectors_import_pyspark() -> None:
    # `__init__.py` imports PySpark's types for type checkers only. The demo is a user's program,
    # and `epochal run` and `epochal check` start one. The daemon is started by Spark.
    programs = ("testing/", "demo/", "cli/run_program", "warm_daemon")
    allowed = ("__init__.py", "connectors/", "continuous/", "evaluator/", *programs)
    wrong = [
        name_of(path)
        for path in modules()
        if any(module.split(".")[0] in ("pyspark", "py4j") for module in imported(path))
        and not name_of(path).startswith(allowed)
    ]
    assert wrong == []


ROW_COUNTS_LOST = re.compile(
    r"\b(?:RecordBatch|Table)\.from_(?:arrays|pylist|pydict|pandas)\b"
    r"|\bpa\.(?:record_batch|table|concat_tables)\("
    r"|\.cast\((?:\w+\.)*_?schema\)|\.toArrow\(\)"
)
"""Calls that return no rows if there are no columns."""

COLUMNS_CERTAIN = {
    "connectors/delta/delta_table.py": "a list of files",
    "connectors/delta/delta_sink.py": "a Delta table has columns",
    "continuous/catalyst/spark_objects.py": "asks for the columns first",
    "continuous/operators/aggregation/spark_buffers.py": "the result of an aggregate is a column",
    "continuous/tasks/frames.py": "schemas without columns are equal",
    "demo/pipeline.py": "the demo's own columns",
}


def test_only_one_module_makes_batches_because_arrow_forgets_rows_without_columns() -> None:
    wrong = {
        name_of(path)
        for path in modules()
        if ROW_COUNTS_LOST.search(path.read_text()) and name_of(path) != "record_batches.py"
    }
    assert wrong == set(COLUMNS_CERTAIN)


def test_only_the_store_formats_tell_the_providers_of_state_apart() -> None:
    # All others ask the format of a store: `epochal.state.store.store_format`.
    providers = re.compile(r"(HDFS|ROCKSDB)(_FILES|(_PROVIDER)?_CLASS)?|HDFSBacked\w+|RocksDB\w+")
    # Files of Hadoop and providers of traces are something else. A job of Spark's writes only the
    # format that is named there.
    may_tell = (
        *("state/", "checkpoint/restart.py", "continuous/spark_job/state_rdd.py"),
        *("files/", "metrics/"),
    )
    telling = set()
    for path in modules():
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Name(id=str(name)) | ast.Attribute(attr=str(name)) | ast.alias(name=name):
                    if providers.fullmatch(name):
                        telling.add(f"{name_of(path)}: {name}")
                case ast.Call(func=ast.Name("isinstance"), args=[ast.Name("provider"), _]):
                    telling.add(f"{name_of(path)}: isinstance of a provider")
                case ast.Constant(value="hdfs" | "rocksdb" as name):
                    telling.add(f"{name_of(path)}: {name}")
    assert {each for each in telling if not each.startswith(may_tell)} == set()


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


def test_every_test_is_in_exactly_one_part_of_the_run() -> None:
    tests = ROOT / "tests"
    found: Counter[Path] = Counter()
    for places in PARTS.values():
        for path in (path for place in places for path in tests.glob(place)):
            found.update(path.rglob("test_*.py") if path.is_dir() else [path])
    assert found == Counter(tests.rglob("test_*.py"))


def test_every_module_says_what_it_is_for() -> None:
    silent = [
        name_of(path) for path in modules() if not ast.get_docstring(ast.parse(path.read_text()))
    ]
    assert silent == []


def test_nothing_in_the_tree_names_one_machine() -> None:
    tracked = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True
    ).stdout.decode()
    machine = re.compile(r"/(?:work/(?:main|shared)|root/|home/(?!you/)[a-z]+/)")
    named = []
    for name in tracked.split("\0"):
        path = ROOT / name
        if name and path.is_file() and path.suffix not in (".xz", ".png", ".lock"):
            text = path.read_text(errors="replace")
            if name != "tests/test_tidy.py" and machine.search(text):
                named.append(name)
    assert named == []


def test_a_command_that_installs_a_package_is_in_backticks_so_that_it_can_be_copied() -> None:
    said = [
        (name_of(path), node.value)
        for path in modules()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and "pip install" in str(node.value)
    ]
    assert said
    assert [each for each in said if "`pip install" not in str(each[1])] == []
