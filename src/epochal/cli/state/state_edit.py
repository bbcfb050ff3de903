"""`epochal state put | delete | repartition | convert | evolve | repair`.

Each makes one new batch with the same offsets and a new version of the state (`repair` alone goes
back instead), shows its plan, and changes nothing until `--execute`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from epochal.cli.editing import (
    SETTLE_SECONDS,
    Directory,
    EvenIfBusy,
    Execute,
    Flags,
    Json,
    SettleSeconds,
    Sink,
    open_sink,
    run_edit,
)
from epochal.cli.state.state_read import Operator, Store, json_lines, parse_json
from epochal.errors import OptionError
from epochal.files import open_files

if TYPE_CHECKING:
    from epochal.tools.edit.edit_plan import Plan
    from epochal.tools.edit.survey import Survey
    from epochal.tools.edit_state.evolve import Evolution

app = typer.Typer(add_completion=False, rich_markup_mode=None)

RowsFile = Annotated[
    str | None, typer.Option("--file", metavar="FILE", help="JSON lines; - is standard input.")
]
Key = Annotated[str | None, typer.Option(metavar="JSON", help="A key, as `read` shows it.")]


@app.command()
def put(
    directory: Directory,
    key: Key = None,
    value: Annotated[
        str | None, typer.Option(metavar="JSON", help="Its value, as `read` shows it.")
    ] = None,
    rows_file: RowsFile = None,
    operator: Operator = 0,
    store: Store = "default",
    execute: Execute = False,
    as_json: Json = False,
    settle_seconds: SettleSeconds = SETTLE_SECONDS,
    even_if_busy: EvenIfBusy = False,
) -> None:
    """Set the value of one key, or of every row of a file ({"key": {...}, "value": {...}})."""
    from epochal.tools.edit_state.mutate import Mutation, plan_mutations

    if (key is None) != (value is None) or (key is None) == (rows_file is None):
        raise OptionError("Give --key and --value, or --file.")
    if rows_file is None:
        rows = [Mutation(_object(key, "--key"), _object(value, "--value"))]
    else:
        rows = [
            Mutation(_part(row, "key", n), _part(row, "value", n))
            for n, row in enumerate(json_lines(rows_file), 1)
        ]
    _run(
        directory,
        "state-put",
        lambda surveyed: plan_mutations(surveyed, rows, operator_id=operator, store_name=store),
        Flags(execute, as_json, settle_seconds, even_if_busy),
    )


@app.command()
def delete(
    directory: Directory,
    key: Key = None,
    rows_file: RowsFile = None,
    operator: Operator = 0,
    store: Store = "default",
    execute: Execute = False,
    as_json: Json = False,
    settle_seconds: SettleSeconds = SETTLE_SECONDS,
    even_if_busy: EvenIfBusy = False,
) -> None:
    """Remove one key, or every key of a file ({"key": {...}}, as `read --json` writes it)."""
    from epochal.tools.edit_state.mutate import Mutation, plan_mutations

    if (key is None) == (rows_file is None):
        raise OptionError("Give --key or --file.")
    if rows_file is None:
        rows = [Mutation(_object(key, "--key"), None)]
    else:
        rows = [
            Mutation(_part(row, "key", n), None) for n, row in enumerate(json_lines(rows_file), 1)
        ]
    _run(
        directory,
        "state-delete",
        lambda surveyed: plan_mutations(surveyed, rows, operator_id=operator, store_name=store),
        Flags(execute, as_json, settle_seconds, even_if_busy),
    )


@app.command()
def repartition(
    directory: Directory,
    partitions: Annotated[int, typer.Option(metavar="N", help="How many there will be.")],
    execute: Execute = False,
    as_json: Json = False,
    settle_seconds: SettleSeconds = SETTLE_SECONDS,
    even_if_busy: EvenIfBusy = False,
) -> None:
    """Spread the state of all operators over another number of partitions (HDFS-backed)."""
    from epochal.tools.edit_state.repartition import plan_repartition

    _run(
        directory,
        "state-repartition",
        lambda surveyed: plan_repartition(surveyed, partitions),
        Flags(execute, as_json, settle_seconds, even_if_busy),
    )


@app.command()
def convert(
    directory: Directory,
    to: Annotated[str, typer.Option(metavar="hdfs|rocksdb", help="The provider.")],
    execute: Execute = False,
    as_json: Json = False,
    settle_seconds: SettleSeconds = SETTLE_SECONDS,
    even_if_busy: EvenIfBusy = False,
) -> None:
    """Move the state to the other provider, where its rows have a form there."""
    from epochal.tools.edit_state.convert import plan_convert
    from epochal.tools.read_state.read_target import Provider

    if to not in ("hdfs", "rocksdb"):
        raise OptionError(f"--to is hdfs or rocksdb, not {to!r}.")
    _run(
        directory,
        "state-convert",
        lambda surveyed: plan_convert(surveyed, Provider(to)),
        Flags(execute, as_json, settle_seconds, even_if_busy),
    )


@app.command()
def evolve(
    directory: Directory,
    add: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME:TYPE=JSON", help="A new value column and its content."),
    ] = None,
    after: Annotated[
        str | None, typer.Option(metavar="NAME", help="The column that --add follows.")
    ] = None,
    widen: Annotated[
        list[str] | None, typer.Option(metavar="NAME:TYPE", help="A wider type for a column.")
    ] = None,
    rename: Annotated[
        list[str] | None, typer.Option(metavar="NAME=NAME", help="Another name for a column.")
    ] = None,
    operator: Operator = 0,
    store: Store = "default",
    execute: Execute = False,
    as_json: Json = False,
    settle_seconds: SettleSeconds = SETTLE_SECONDS,
    even_if_busy: EvenIfBusy = False,
) -> None:
    """Give stored values another schema, so that a changed query accepts them (HDFS-backed)."""
    from epochal.tools.edit_state.evolve import plan_evolve

    steps = _steps(rename or [], widen or [], add or [], after)
    _run(
        directory,
        "state-evolve",
        lambda surveyed: plan_evolve(surveyed, steps, operator_id=operator, store_name=store),
        Flags(execute, as_json, settle_seconds, even_if_busy),
    )


@app.command()
def repair(
    directory: Directory,
    sink: Sink = None,
    execute: Execute = False,
    as_json: Json = False,
    settle_seconds: SettleSeconds = SETTLE_SECONDS,
    even_if_busy: EvenIfBusy = False,
) -> None:
    """Rebuild bad snapshots; with a delta lost, go back to the newest version that loads."""
    from epochal.tools.edit_state.repair_state import plan_repair

    _run(
        directory,
        "state-repair",
        lambda surveyed: plan_repair(surveyed, sink=open_sink(sink)()),
        Flags(execute, as_json, settle_seconds, even_if_busy),
    )


def _run(
    directory: str,
    command: str,
    make_plan: Callable[[Survey], Plan],
    flags: Flags,
) -> None:
    from epochal.tools.edit.survey import survey

    files = open_files(directory)
    run_edit(files, command, lambda: make_plan(survey(files)), flags)


def _steps(
    renames: list[str], widens: list[str], adds: list[str], after: str | None
) -> list[Evolution]:
    from epochal.tools.edit_state.evolve import AddColumn, RenameColumn, WidenColumn, parse_type

    steps: list[Evolution] = []
    for text in renames:
        name, to = _pair(text, "=", "--rename")
        steps.append(RenameColumn(name, to))
    for text in widens:
        name, kind = _pair(text, ":", "--widen")
        steps.append(WidenColumn(name, parse_type(kind)))
    for text in adds:
        name, rest = _pair(text, ":", "--add")
        kind, default = _pair(rest, "=", "--add")
        steps.append(AddColumn(name, parse_type(kind), parse_json(default, "--add"), after))
        after = name if after is not None else None
    return steps


def _pair(text: str, mark: str, option: str) -> tuple[str, str]:
    left, found, right = text.partition(mark)
    if not (left and found and right):
        raise OptionError(f"{option} {text!r}: a {mark!r} is missing.")
    return left, right


def _object(text: str | None, option: str) -> dict[str, Any]:
    found = parse_json(text or "", option)
    if not isinstance(found, dict):
        raise OptionError(f"{option} {text!r}: an object is needed, such as {{}}.")
    return found


def _part(row: Any, name: str, number: int) -> dict[str, Any]:
    found = row.get(name) if isinstance(row, dict) else None
    if not isinstance(found, dict):
        raise OptionError(f"row {number} has no object {name!r}.")
    return found
