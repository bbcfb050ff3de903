"""`epochal state put | delete | repartition | convert | evolve | repair`.

Each command adds one batch with the same offsets and a new version of the state; only `repair` goes
back instead. Each shows its plan, and changes nothing without `--execute`.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from epochal.checkpoint.layout import STATE
from epochal.cli.arguments import (
    Directory,
    Operator,
    OptionalKey,
    SinkFlags,
    Store,
    Timers,
    Variable,
    open_place,
    takes_groups,
)
from epochal.cli.editing import Flags, run_edit
from epochal.cli.state.state_read import json_lines, parse_json
from epochal.errors import OptionError
from epochal.state.store.store_format import FORMATS_BY_NAME

if TYPE_CHECKING:
    from epochal.tools.edit.edit_file_log import SinkSurvey
    from epochal.tools.edit.edit_plan import Plan
    from epochal.tools.edit.survey import Survey
    from epochal.tools.edit_state.evolve import Evolution

app = typer.Typer(add_completion=False, rich_markup_mode=None)

RowsFile = Annotated[
    str | None,
    typer.Option("--file", metavar="FILE", help="A file of JSON lines; - means standard input."),
]

Table = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="TABLE",
        help="Take the values of added columns from this table, which also has the columns of the "
        "key: FILE.parquet, FILE.csv or a Delta table.",
    ),
]
AddKeys = Annotated[
    bool, typer.Option("--add-keys", help="With --from: add keys that only the table has.")
]


@app.command()
@takes_groups
def put(
    directory: Directory,
    key: OptionalKey = None,
    value: Annotated[
        str | None,
        typer.Option(
            metavar="JSON", help="The value as a JSON object, as `read --json` prints it."
        ),
    ] = None,
    rows_file: RowsFile = None,
    operator: Operator = 0,
    store: Store = "default",
    variable: Variable = None,
    timers: Timers = False,
    *,
    sink: SinkFlags,
    flags: Flags,
) -> None:
    """Set the value of one key, or of every key in a file ({"key": {...}, "value": {...}}).

    The file has the rows that `read --json` prints, also for variables and timers of
    transformWithState. The rows of a list that have the same key become the whole list.
    """
    from epochal.tools.edit_state.mutate import Mutation, plan_mutations

    if (key is None) != (value is None) or (key is None) == (rows_file is None):
        raise OptionError("Give --key and --value, or --file.")
    if rows_file is None:
        rows = [Mutation(_object(key, "--key"), _object(value, "--value"))]
    else:
        rows = [
            Mutation(_key_of(row, n), _value_of(row, n))
            for n, row in enumerate(json_lines(rows_file), 1)
        ]
    run_state_edit(
        directory,
        "state-put",
        sink,
        lambda surveyed, output: plan_mutations(
            surveyed,
            rows,
            operator_id=operator,
            store_name=store,
            variable=variable,
            timers=timers,
            sink=output,
        ),
        flags,
    )


@app.command()
@takes_groups
def delete(
    directory: Directory,
    key: OptionalKey = None,
    rows_file: RowsFile = None,
    operator: Operator = 0,
    store: Store = "default",
    variable: Variable = None,
    timers: Timers = False,
    *,
    sink: SinkFlags,
    flags: Flags,
) -> None:
    """Delete one key, or every key in a file ({"key": {...}}, as `read --json` prints it)."""
    from epochal.tools.edit_state.mutate import Mutation, plan_mutations

    if (key is None) == (rows_file is None):
        raise OptionError("Give --key or --file.")
    if rows_file is None:
        rows = [Mutation(_object(key, "--key"), None)]
    else:
        rows = [Mutation(_key_of(row, n), None) for n, row in enumerate(json_lines(rows_file), 1)]
    run_state_edit(
        directory,
        "state-delete",
        sink,
        lambda surveyed, output: plan_mutations(
            surveyed,
            rows,
            operator_id=operator,
            store_name=store,
            variable=variable,
            timers=timers,
            sink=output,
        ),
        flags,
    )


@app.command()
@takes_groups
def repartition(
    directory: Directory,
    partitions: Annotated[int, typer.Option(metavar="N", help="The new number of partitions.")],
    *,
    sink: SinkFlags,
    flags: Flags,
) -> None:
    """Change the number of state partitions of all operators."""
    from epochal.tools.edit_state.repartition import plan_repartition

    run_state_edit(
        directory,
        "state-repartition",
        sink,
        lambda surveyed, output: plan_repartition(surveyed, partitions, sink=output),
        flags,
    )


@app.command()
@takes_groups
def convert(
    directory: Directory,
    to: Annotated[
        str, typer.Option(metavar="hdfs|rocksdb", help="The state store provider to convert to.")
    ],
    *,
    sink: SinkFlags,
    flags: Flags,
) -> None:
    """Convert the state to the other provider, if that provider can store its rows."""
    from epochal.tools.edit_state.convert import plan_convert

    if to not in FORMATS_BY_NAME:
        raise OptionError(f"--to must be {' or '.join(FORMATS_BY_NAME)}, not {to!r}.")
    run_state_edit(
        directory,
        "state-convert",
        sink,
        lambda surveyed, output: plan_convert(surveyed, FORMATS_BY_NAME[to], sink=output),
        flags,
    )


@app.command()
@takes_groups
def evolve(
    directory: Directory,
    add: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME:TYPE[=JSON]",
            help="Add a value column, with this value or null in every row; may be repeated.",
        ),
    ] = None,
    after: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="The column after which --add inserts. [default: the last]"
        ),
    ] = None,
    widen: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME:TYPE", help="Change a column to a wider type; may be repeated."),
    ] = None,
    rename: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=NAME", help="Rename a column, old name first; may be repeated."),
    ] = None,
    table: Table = None,
    add_keys: AddKeys = False,
    operator: Operator = 0,
    store: Store = "default",
    variable: Variable = None,
    *,
    sink: SinkFlags,
    flags: Flags,
) -> None:
    """Change the schema of stored values for a changed query."""
    from epochal.tools.edit_state.evolve import plan_backfill, plan_evolve

    if table is None and add_keys:
        raise OptionError("--add-keys adds keys of a table: name it with --from.")
    if table is not None and variable is not None:
        raise OptionError("--from fills aggregates, not variables: give --variable or --from.")
    steps = _steps(rename or [], widen or [], add or [], after)

    def plan(surveyed: Survey, output: SinkSurvey | None) -> Plan:
        if table is not None:
            return plan_backfill(
                surveyed,
                steps,
                table,
                add_keys=add_keys,
                operator_id=operator,
                store_name=store,
                sink=output,
            )
        return plan_evolve(
            surveyed, steps, operator_id=operator, store_name=store, variable=variable, sink=output
        )

    run_state_edit(directory, "state-evolve", sink, plan, flags)


@app.command()
@takes_groups
def repair(directory: Directory, *, sink: SinkFlags, flags: Flags) -> None:
    """Remove damaged snapshots; if a delta is lost, go back to the newest batch that loads.

    This is `epochal checkpoint repair --rewind`, limited to what `verify` finds in the state.
    """
    from epochal.cli.editing import run_repair
    from epochal.tools.edit.repair_draft import RepairOptions

    run_repair(
        open_place(directory),
        "state-repair",
        RepairOptions(query_id=str(uuid.uuid4()), may_go_back=True),
        sink.open(),
        flags,
        lambda finding: finding.path.startswith(f"{STATE}/") or finding.code == "EDIT_UNFINISHED",
        "it is not in the state: run `epochal checkpoint repair CHECKPOINT --sink OUTPUT`",
    )


def run_state_edit(
    directory: str,
    command: str,
    sink: SinkFlags,
    make_plan: Callable[[Survey, SinkSurvey | None], Plan],
    flags: Flags,
) -> None:
    """Show or apply a plan that is made from a survey of the checkpoint and of its file sink."""
    from epochal.tools.edit.edit_file_log import find_sink
    from epochal.tools.edit.rewind import require_published
    from epochal.tools.edit.survey import survey

    files, named = open_place(directory), sink.open()

    def plan() -> Plan:
        surveyed = survey(files)
        require_published(surveyed)
        return make_plan(surveyed, find_sink(surveyed, named))

    run_edit(files, command, plan, flags, places=[named.place])


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
        kind, default = _pair(rest, "=", "--add") if "=" in rest else (rest, "null")
        steps.append(AddColumn(name, parse_type(kind), parse_json(default, "--add"), after))
        after = name if after is not None else None
    return steps


def _pair(text: str, separator: str, option: str) -> tuple[str, str]:
    left, between, right = text.partition(separator)
    if not (left and between and right):
        raise OptionError(f"{option} {text!r}: there must be text before and after {separator!r}.")
    return left, right


def _object(text: str | None, option: str) -> dict[str, Any]:
    value = parse_json(text or "", option)
    if not isinstance(value, dict):
        raise OptionError(f'{option} {text!r} is not a JSON object such as {{"k": 1}}.')
    return value


def _key_of(row: Any, number: int) -> dict[str, Any]:
    """The key of a row as `read` prints it; maps and timers have a second column."""
    key = _member(row, "key", number)
    second = next((name for name in ("user_map_key", "expiration_timestamp_ms") if name in row), "")
    return {"key": key, second: row[second]} if second else key


def _value_of(row: Any, number: int) -> dict[str, Any]:
    if "expiration_timestamp_ms" in row:
        return {}
    names = ("list_element", "user_map_value")
    return _member(row, next((name for name in names if name in row), "value"), number)


def _member(row: Any, name: str, number: int) -> dict[str, Any]:
    value = row.get(name) if isinstance(row, dict) else None
    if not isinstance(value, dict):
        raise OptionError(
            f"Row {number} of the file has no JSON object {name!r}. Write each row as "
            f'{{"key": {{...}}, "value": {{...}}}}.'
        )
    return value
