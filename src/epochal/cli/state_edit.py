"""The commands of `epochal state` that write.

Each command adds one batch with the same offsets and a new version of the state; only `repair` goes
back instead. Each shows its plan, and changes nothing without `--execute`.
"""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING, Any

from epochal.checkpoint.layout import STATE
from epochal.cli.command_line import (
    KEY_HELP,
    CommandApp,
    Operator,
    Store,
    StoreChoice,
    Timers,
    flag,
    option,
    parse_json,
    parse_pairs,
)
from epochal.cli.editing import CheckpointEdit, run_repair
from epochal.errors import OptionError
from epochal.state.store.store_format import FORMATS_BY_NAME

if TYPE_CHECKING:
    from epochal.tools.edit_state.evolve import Evolution

NEW_OPERATOR_HELP = "The number of the operator that is made."

app = CommandApp(add_completion=False, rich_markup_mode=None)


@dataclass(frozen=True, kw_only=True)
class StoreRows(StoreChoice):
    """The rows to change, if they are in a file, and the store that has them."""

    rows_file: str | None = option(
        "FILE", "A file of JSON lines; - means standard input.", "--file"
    )
    timers: Timers = False

    def change(
        self,
        edit: CheckpointEdit,
        command: str,
        rows: Iterable[tuple[dict[str, Any], dict[str, Any] | None]],
    ) -> None:
        """Show or apply a plan that gives each key its value, or deletes it without one."""
        from epochal.tools.edit_state.mutate import Mutation, plan_mutations

        plan = partial(
            plan_mutations,
            mutations=[Mutation(key, value) for key, value in rows],
            operator_id=self.operator,
            store_name=self.store,
            variable=self.variable,
            timers=self.timers,
        )
        edit.run(command, plan)


@app.command()
def put(
    edit: CheckpointEdit,
    of: StoreRows,
    key: str | None = option("JSON", KEY_HELP),
    value: str | None = option("JSON", "The value as a JSON object, as `read --json` prints it."),
) -> None:
    """Set the value of one key, or of every key in a file ({"key": {...}, "value": {...}}).

    The file has the rows that `read --json` prints, also for variables and timers of
    transformWithState. The rows of a list that have the same key become the whole list.
    """
    if (key is None) != (value is None) or (key is None) == (of.rows_file is None):
        raise OptionError("Give --key and --value, or --file.")
    if of.rows_file is None:
        rows = [(_object(key, "--key"), _object(value, "--value"))]
    else:
        rows = [
            (_key_of(row, n), _value_of(row, n))
            for n, row in enumerate(json_lines(of.rows_file), 1)
        ]
    of.change(edit, "state-put", rows)


@app.command()
def delete(edit: CheckpointEdit, of: StoreRows, key: str | None = option("JSON", KEY_HELP)) -> None:
    """Delete one key, or every key in a file ({"key": {...}}, as `read --json` prints it)."""
    if (key is None) == (of.rows_file is None):
        raise OptionError("Give --key or --file.")
    if of.rows_file is None:
        keys = [_object(key, "--key")]
    else:
        keys = [_key_of(row, n) for n, row in enumerate(json_lines(of.rows_file), 1)]
    of.change(edit, "state-delete", [(deleted, None) for deleted in keys])


@app.command()
def repartition(
    edit: CheckpointEdit,
    partitions: int = option("N", "The new number of partitions.", default=...),
) -> None:
    """Change the number of state partitions of all operators."""
    from epochal.tools.edit_state.repartition import plan_repartition

    edit.run("state-repartition", partial(plan_repartition, partitions=partitions))


@app.command()
def convert(
    edit: CheckpointEdit,
    to: str = option("hdfs|rocksdb", "The state store provider to convert to.", default=...),
) -> None:
    """Convert the state to the other provider, if that provider can store its rows."""
    from epochal.tools.edit_state.convert import plan_convert

    if to not in FORMATS_BY_NAME:
        raise OptionError(f"--to must be {' or '.join(FORMATS_BY_NAME)}, not {to!r}.")
    edit.run("state-convert", partial(plan_convert, to=FORMATS_BY_NAME[to]))


@app.command()
def evolve(
    edit: CheckpointEdit,
    of: StoreChoice,
    add: list[str] | None = option(
        "NAME:TYPE[=JSON]",
        "Add a value column, with this value or null in every row; may be repeated.",
    ),
    after: str | None = option("NAME", "The column after which --add inserts. [default: the last]"),
    widen: list[str] | None = option(
        "NAME:TYPE", "Change a column to a wider type; may be repeated."
    ),
    rename: list[str] | None = option(
        "NAME=NAME", "Rename a column, old name first; may be repeated."
    ),
    table: str | None = option(
        "TABLE",
        "Take the values of added columns from this table, which also has the columns of the key: "
        "FILE.parquet, FILE.csv or a Delta table.",
        "--from",
    ),
    add_keys: bool = flag("--add-keys", "With --from: add keys that only the table has."),
) -> None:
    """Change the schema of stored values for a changed query."""
    from epochal.tools.edit_state.evolve import plan_backfill, plan_evolve

    if table is None and add_keys:
        raise OptionError("--add-keys adds keys of a table: name it with --from.")
    if table is not None and of.variable is not None:
        raise OptionError("--from fills aggregates, not variables: give --variable or --from.")
    steps = _steps(rename, widen, add, after)
    if table is not None:
        evolve_state = partial(plan_backfill, table=table, add_keys=add_keys)
    else:
        evolve_state = partial(plan_evolve, variable=of.variable)
    plan = partial(evolve_state, steps=steps, operator_id=of.operator, store_name=of.store)
    edit.run("state-evolve", plan)


@app.command()
def rekey(
    edit: CheckpointEdit,
    key_function: str = option(
        "MODULE:FUNCTION",
        "Called with each key and value, as `read --json` prints them. Returns the new key, the "
        "new key and value, or None to drop the row. MODULE may be a .py file.",
        default=...,
    ),
    merge_function: str | None = option(
        "MODULE:FUNCTION",
        "Called with a key and two values that meet there; returns the value of both.",
    ),
    key_schema: str | None = option("DDL", 'The columns of the new key: "country string".'),
    value_schema: str | None = option("DDL", "The columns of the new value, likewise."),
    operator: Operator = 0,
    store: Store = "default",
) -> None:
    """Give the rows of an operator other keys, with a function of yours."""
    from epochal.tools.edit_state.rekey import plan_rekey
    from epochal.tools.read_state.read_target import given_schemas

    function = load_function(key_function, "--key-function")
    merge = load_function(merge_function, "--merge-function") if merge_function else None
    schemas = given_schemas(key_schema, value_schema)
    plan = partial(
        plan_rekey,
        function=function,
        merge=merge,
        key_schema=schemas.key,
        value_schema=schemas.value,
        operator_id=operator,
        store_name=store,
    )
    edit.run("state-rekey", plan)


@app.command()
def split(
    edit: CheckpointEdit,
    columns: str = option(
        "NAME,NAME", "The value columns that the new operator gets.", default=...
    ),
    to: int = option("N", NEW_OPERATOR_HELP, default=...),
    operator: Operator = 0,
) -> None:
    """Move some value columns of an operator to a new operator with the same keys."""
    from epochal.tools.edit_state.reshape import plan_split

    names = [name.strip() for name in columns.split(",")]
    plan = partial(plan_split, columns=names, to=to, operator_id=operator)
    edit.run("state-split", plan)


@app.command()
def merge(
    edit: CheckpointEdit,
    other: int = option("N", "The operator whose columns are added. It ends.", default=...),
    operator: Operator = 0,
    fill: list[str] | None = option(
        "NAME=JSON",
        "What a column has for keys that its operator lacks, instead of null; may be repeated.",
    ),
) -> None:
    """Merge the state of two operators with the same keys into one."""
    from epochal.tools.edit_state.reshape import plan_merge

    pairs = parse_pairs(fill, "--fill", "NAME=JSON")
    values = {name: parse_json(text, "--fill") for name, text in pairs.items()}
    plan = partial(plan_merge, other=other, operator_id=operator, fill=values)
    edit.run("state-merge", plan)


@app.command()
def move(
    edit: CheckpointEdit,
    to: int = option("N", NEW_OPERATOR_HELP, default=...),
    operator: Operator = 0,
) -> None:
    """Give the state of an operator another number, for a query that numbers them otherwise."""
    from epochal.tools.edit_state.reshape import plan_move

    edit.run("state-move", partial(plan_move, operator_id=operator, to=to))


@app.command()
def repair(edit: CheckpointEdit) -> None:
    """Remove damaged snapshots; if a delta is lost, go back to the newest batch that loads.

    This is `epochal checkpoint repair --rewind`, limited to what `verify` finds in the state.
    """
    from epochal.tools.edit.repair_draft import RepairOptions

    run_repair(
        edit,
        "state-repair",
        RepairOptions(query_id=str(uuid.uuid4()), may_go_back=True),
        lambda finding: finding.path.startswith(f"{STATE}/") or finding.code == "EDIT_UNFINISHED",
        "it is not in the state: run `epochal checkpoint repair CHECKPOINT --sink OUTPUT`",
    )


def json_lines(path: str) -> Iterator[Any]:
    """The objects in a file of JSON lines; `-` means standard input."""
    source = sys.stdin if path == "-" else open(path, encoding="utf-8")  # noqa: SIM115
    with source:
        for number, line in enumerate(source, 1):
            if line.strip():
                yield parse_json(line, f"{path}, line {number}:")


def _steps(
    renames: list[str] | None, widens: list[str] | None, adds: list[str] | None, after: str | None
) -> list[Evolution]:
    from epochal.tools.edit_state.evolve import AddColumn, RenameColumn, WidenColumn, parse_type

    steps: list[Evolution] = []
    for text in renames or ():
        name, to = _pair(text, "=", "--rename")
        steps.append(RenameColumn(name, to))
    for text in widens or ():
        name, kind = _pair(text, ":", "--widen")
        steps.append(WidenColumn(name, parse_type(kind)))
    for text in adds or ():
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


def load_function(text: str, option: str) -> Callable[..., Any]:
    """Load `MODULE:FUNCTION`, where MODULE is a module's name or a .py file."""
    name, _, attribute = text.rpartition(":")
    if not (name and attribute):
        raise OptionError(f"{option} {text!r} is not of the form MODULE:FUNCTION.")
    try:
        if name.endswith(".py"):
            spec = spec_from_file_location(Path(name).stem, name)
            if spec is None or spec.loader is None:
                raise ImportError(f"{name} is not a Python file")
            module: Any = module_from_spec(spec)
            spec.loader.exec_module(module)
        else:
            # As with `python -m`, modules of the working directory are found too.
            if "" not in sys.path:
                sys.path.insert(0, "")
            module = import_module(name)
    except (ImportError, OSError, SyntaxError) as error:
        raise OptionError(f"{option} {text!r}: {name} cannot be imported: {error}") from error
    target = getattr(module, attribute, None)
    if not callable(target):
        raise OptionError(f"{option} {text!r}: {name} has no function {attribute!r}.")
    function: Callable[..., Any] = target
    return function
