"""Plants faults in the modules that decide, one at a time, and sees whether the tests notice.

    python -m tests.mutations              every fault, with the tests of `make test` without Spark
    python -m tests.mutations 3 17         some of them
    python -m tests.mutations --list       what each one changes

A fault is a small change at one place of the syntax tree, so that comments and layout may change
without touching this table. Each fault is planted in a copy of `src`; the working tree stays as it
is. The exit status is 1 if a fault goes unnoticed.
"""

from __future__ import annotations

import argparse
import ast
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EVERYDAY = "not long and not full"
VERDICTS = ("FAILED", "ERROR")


@dataclass(frozen=True, slots=True)
class Fault:
    """The `nth` place in a function where a change of this kind is possible."""

    module: str
    function: str
    kind: str
    nth: int = 0
    first: tuple[str, ...] = ()
    """Tests to run before all others, relative to `tests`: the ones that should notice."""

    def __str__(self) -> str:
        return f"{self.module} {self.function}: {self.kind} {self.nth}"


UNIT_EPOCH = ("transcripts", "unit/epoch")
CONNECTORS, TASKS = ("unit/connectors",), ("unit/continuous/tasks",)
FAULTS = (
    Fault("epoch/coordinator.py", "EpochCoordinator._report", "compare", 1, UNIT_EPOCH),
    Fault("epoch/coordinator.py", "EpochCoordinator._report", "compare", 2, UNIT_EPOCH),
    Fault("epoch/coordinator.py", "EpochCoordinator._decide_complete", "number", 0, UNIT_EPOCH),
    Fault("epoch/coordinator.py", "EpochCoordinator._may_end_epoch", "compare", 2, UNIT_EPOCH),
    Fault("epoch/coordinator.py", "EpochCoordinator._note_commit", "extreme", 0, UNIT_EPOCH),
    Fault("epoch/coordinator.py", "EpochCoordinator._check_attempt", "compare", 0, UNIT_EPOCH),
    Fault("epoch/recovery.py", "_plan", "boolean", 1, UNIT_EPOCH),
    Fault("epoch/recovery.py", "_check_fence", "compare", 1, UNIT_EPOCH),
    Fault("epoch/recovery.py", "open_epoch", "number", 0, UNIT_EPOCH),
    Fault("epoch/recovery.py", "_resume", "number", 0, UNIT_EPOCH),
    Fault("checkpoint/restart.py", "plan_restart", "compare", 7, ("unit/checkpoint",)),
    Fault("checkpoint/restart.py", "_previous", "number", 0, ("unit/checkpoint",)),
    Fault("checkpoint/restart.py", "commit_log_version", "compare", 1, ("unit/checkpoint",)),
    Fault("checkpoint/metadata_log.py", "verify_batch_ids", "compare", 3, ("unit/checkpoint",)),
    Fault("checkpoint/file_log.py", "first_batch_to_keep", "number", 0, ("unit/checkpoint",)),
    Fault("state/files/chain.py", "deletable", "compare", 2, ("unit/state/files",)),
    Fault("state/files/chain.py", "snapshot_due", "compare", 2, ("unit/state/files",)),
    Fault("state/files/chain.py", "plan_snapshots", "compare", 0, ("unit/state/files",)),
    Fault("state/rows/murmur3.py", "_mix_one_by_one", "number", 0, ("unit/state/rows",)),
    Fault("state/store/versions.py", "Draft.remove", "compare", 1, ("unit/state/store",)),
    Fault("connectors/kafka/offsets.py", "plan_commit", "compare", 2, CONNECTORS),
    Fault("connectors/kafka/offsets.py", "merge_requests", "boolean", 0, CONNECTORS),
    Fault(
        "connectors/kafka/source/source_offsets.py",
        "settle_start",
        "compare",
        2,
        ("unit/connectors",),
    ),
    Fault(
        "connectors/pubsub/sidecar/grants.py", "Grants.claim", "compare", 3, ("unit/connectors",)
    ),
    Fault(
        "connectors/pubsub/sidecar/grants.py", "Grants.commit", "compare", 0, ("unit/connectors",)
    ),
    Fault(
        "connectors/pubsub/pull/ack_leases.py",
        "LeaseBook._remove",
        "compare",
        2,
        ("unit/connectors",),
    ),
    Fault(
        "continuous/tasks/exchange.py", "Inbox.receive", "compare", 0, ("unit/continuous/tasks",)
    ),
    Fault("continuous/tasks/exchange.py", "Inbox.take", "negation", 0, TASKS),
    Fault("continuous/tasks/exchange.py", "Outbox.acknowledge", "compare", 1, TASKS),
    Fault(
        "epoch/event_time/query_watermark.py",
        "QueryWatermark.wants_epoch",
        "compare",
        0,
        UNIT_EPOCH,
    ),
    Fault("epoch/event_time/query_watermark.py", "QueryWatermark.decide", "compare", 0, UNIT_EPOCH),
    Fault("continuous/plan/stages.py", "input_watermarks", "extreme", 0, ("unit/continuous/plan",)),
    Fault("continuous/operators/containers.py", "Agenda.take", "compare", 0, ("unit/continuous",)),
)

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}


def planted(source: str, fault: Fault) -> tuple[str, str, str]:
    """The source with the fault in it, and the line it changes, before and after."""
    tree = ast.parse(source)
    place = _places(tree, fault)
    before = ast.unparse(place)
    _change(place, fault.kind)
    after = ast.unparse(place)
    return ast.unparse(ast.fix_missing_locations(tree)), before, after


def _places(tree: ast.Module, fault: Fault) -> ast.AST:
    scope: ast.AST = tree
    for name in fault.function.split("."):
        inside = [
            node
            for node in ast.walk(scope)
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name
        ]
        if not inside:
            raise SystemExit(f"{fault}: there is no {name}")
        scope = inside[0]
    found = [node for node in _ordered(scope) if _fits(node, fault.kind)]
    if fault.nth >= len(found):
        raise SystemExit(f"{fault}: there are only {len(found)} such places")
    return found[fault.nth]


def _ordered(scope: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(scope):
        yield child
        yield from _ordered(child)


def _fits(node: ast.AST, kind: str) -> bool:
    match kind:
        case "compare":
            return isinstance(node, ast.Compare)
        case "number":
            return (
                isinstance(node, ast.BinOp)
                and isinstance(node.right, ast.Constant)
                and isinstance(node.right.value, int)
            )
        case "boolean":
            return isinstance(node, ast.BoolOp)
        case "negation":
            return isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
        case "extreme":
            return (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id in ("min", "max")
            )
    raise SystemExit(f"no such kind of fault: {kind}")


def _change(node: ast.AST, kind: str) -> None:
    match node:
        case ast.Compare(ops=ops):
            node.ops = [_COMPARISONS[type(ops[0])](), *ops[1:]]
        case ast.BinOp(right=ast.Constant() as number):
            node.right = ast.Constant(number.value + 1)  # type: ignore[operator]
        case ast.BoolOp(op=op):
            node.op = ast.Or() if isinstance(op, ast.And) else ast.And()
        case ast.UnaryOp():
            node.op = ast.UAdd()  # truth stays truth, without the negation
        case ast.Call(func=ast.Name(id=name) as function):
            function.id = "min" if name == "max" else "max"


def caught_by(fault: Fault, source: Path, tests: tuple[str, ...]) -> str | None:
    """The first test that fails with the fault planted; None if all pass."""
    with tempfile.TemporaryDirectory(prefix="epochal-mutation-") as folder:
        copy = Path(folder, "src")
        shutil.copytree(source, copy, ignore=shutil.ignore_patterns("__pycache__"))
        module = copy / "epochal" / fault.module
        module.write_text(planted(module.read_text(encoding="utf-8"), fault)[0], encoding="utf-8")
        environment = dict(os.environ, PYTHONPATH=os.pathsep.join((str(copy), str(ROOT))))
        for folders in (fault.first, tests):
            command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
            command += ["-n", "2", "-m", EVERYDAY, *(f"tests/{each}" for each in folders)]
            run = subprocess.run(
                command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
            )
            if run.returncode:
                lines = [
                    line for line in run.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))
                ]
                return lines[0] if lines else f"pytest ended with {run.returncode}"
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("numbers", nargs="*", type=int, help="which faults; all by default")
    parser.add_argument("--list", action="store_true", help="only say what each fault changes")
    arguments = parser.parse_args()
    source = ROOT / "src"
    missed = 0
    for number in arguments.numbers or range(len(FAULTS)):
        fault = FAULTS[number]
        text = (source / "epochal" / fault.module).read_text(encoding="utf-8")
        _, before, after = planted(text, fault)
        sys.stdout.write(f"{number}: {fault.module} {fault.function}: {before}  ->  {after}\n")
        if arguments.list:
            continue
        started = time.monotonic()
        found = caught_by(fault, source, ("unit", "transcripts", "simulation", "golden", "fuzz"))
        missed += found is None
        verdict = "MISSED" if found is None else f"caught: {found}"
        sys.stdout.write(f"   {verdict} ({time.monotonic() - started:.0f} s)\n")
        sys.stdout.flush()
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
