"""Reads the import graph of a package: which module imports which, wherever the import stands.

Imports inside functions, imports for type checkers and imports by string count like all others. A
string is an import when it is the full name of one of the package's modules, as in
`import_module("epochal.cli.state")`, `"epochal.cli.state:app"` or `python -m epochal.cli.main`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

FLOORS: dict[str, tuple[str, ...]] = {
    "Formats and stores": (
        "version",
        "warm_daemon",
        "wording",
        "record_batches",
        "errors",
        "clock",
        "options",
        "files",
        "evaluator",
        "rpc",
        "metrics",
        "checkpoint",
        "state.rows",
        "state.files",
        "state.store",
        "state.disk",
    ),
    "Engine": (
        "epoch",
        "connectors",
        "connectors.staging",
        "connectors.dead_letters",
        "connectors.file",
        "connectors.tables",
        "connectors.delta",
        "connectors.iceberg",
        "connectors.payloads",
        "connectors.schema_registry",
        "connectors.kafka",
        "connectors.kafka.source",
        "connectors.kafka.sink",
        "connectors.kafka.committer",
        "connectors.pubsub",
        "connectors.pubsub.pull",
        "connectors.pubsub.publish",
        "connectors.pubsub.parse",
        "connectors.pubsub.sidecar",
        "connectors.pubsub.data_source",
        "connectors.pubsub.continuous_pubsub",
        "connectors.pubsub.server",
        "connectors.postgres",
        "connectors.registry",
        "continuous.operators",
        "continuous.operators.expressions",
        "continuous.operators.stateless",
        "continuous.operators.aggregation",
        "continuous.operators.deduplication",
        "continuous.operators.joins",
        "continuous.operators.processor",
        "continuous.plan",
        "continuous.catalyst",
        "continuous.tasks",
        "continuous.spark_job",
        "continuous.run",
        "continuous.api",
    ),
    "Tools and front ends": (
        "tools",
        "tools.inspect",
        "tools.read_state",
        "tools.verify",
        "tools.edit",
        "tools.edit_state",
        "tools.switch",
        "tools.upgrade",
        "public",
        "testing",
        "dashboard",
        "demo",
        "cli.printing",
        "cli",
        "cli.state",
        "cli.checkpoint",
        "cli.main",
        "__main__",
    ),
}
"""Every package, from bottom to top. A module may import from its own package and from those before
it. A module belongs to the longest name here that it starts with."""

ORDER = [package for floor in FLOORS.values() for package in floor]

PUBLIC = {"epochal", "epochal.continuous", "epochal.kafka", "epochal.state"}
"""Modules that only re-export public names from wherever they live: the package `public`."""

_MODULE_IN_STRING = re.compile(r"([a-z_]+(?:\.\w+)+)(?::\w+)?")


def module_files(package: Path) -> dict[str, Path]:
    """The modules of the package at `package`, by their full names."""
    found = {}
    for path in sorted(package.rglob("*.py")):
        name = ".".join((package.name, *path.relative_to(package).with_suffix("").parts))
        found[name.removesuffix(".__init__")] = path
    return found


def import_graph(package: Path) -> dict[str, set[str]]:
    """For each module the modules of the same package that it imports."""
    modules = module_files(package)
    graph = {}
    for name, path in modules.items():
        wanted = {_owner(each, modules) for each in _mentions(path, package.name)}
        graph[name] = {each for each in wanted if each is not None} - {name}
    return graph


def package_of(module: str) -> str:
    """The name in ORDER that a module belongs to."""
    if module in PUBLIC:
        return "public"
    name = module.removeprefix("epochal.")
    owners = [each for each in ORDER if name == each or name.startswith(f"{each}.")]
    return max(owners, key=len)


def place_of(module: str) -> int:
    """Where the module's package stands in ORDER."""
    return ORDER.index(package_of(module))


def _mentions(path: Path, package: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.Import(names):
                yield from (alias.name for alias in names if _is_inside(alias.name, package))
            case ast.ImportFrom(module=str(module), names=names) if _is_inside(module, package):
                yield from (f"{module}.{alias.name}" for alias in names)
            case ast.Constant(value=str(text)) if found := _MODULE_IN_STRING.fullmatch(text):
                if _is_inside(found[1], package):
                    yield found[1]


def _is_inside(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def _owner(name: str, modules: dict[str, Path]) -> str | None:
    """The module that a dotted name belongs to: itself, or the longest prefix that is a module."""
    while name and name not in modules:
        name = name.rpartition(".")[0]
    return name or None
