"""`epochal state rekey | split | merge | move`: other keys, and other operators.

Each command adds one batch with the same offsets and a new version of the state. Each shows its
plan, and changes nothing without `--execute`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Annotated, Any

import typer

from epochal.cli.arguments import Directory, Operator, SinkFlags, Store, parse_pairs, takes_groups
from epochal.cli.editing import Flags
from epochal.cli.state.state_edit import run_state_edit
from epochal.cli.state.state_read import parse_json
from epochal.errors import OptionError

app = typer.Typer(add_completion=False, rich_markup_mode=None)

FreeOperator = Annotated[
    int, typer.Option("--to", metavar="N", help="The number of the operator that is made.")
]


@app.command()
@takes_groups
def rekey(
    directory: Directory,
    key_function: Annotated[
        str,
        typer.Option(
            metavar="MODULE:FUNCTION",
            help="Called with each key and value, as `read --json` prints them. Returns the new "
            "key, the new key and value, or None to drop the row. MODULE may be a .py file.",
        ),
    ],
    merge_function: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:FUNCTION",
            help="Called with a key and two values that meet there; returns the value of both.",
        ),
    ] = None,
    key_schema: Annotated[
        str | None,
        typer.Option(metavar="DDL", help='The columns of the new key: "country string".'),
    ] = None,
    value_schema: Annotated[
        str | None, typer.Option(metavar="DDL", help="The columns of the new value, likewise.")
    ] = None,
    operator: Operator = 0,
    store: Store = "default",
    *,
    sink: SinkFlags,
    flags: Flags,
) -> None:
    """Give the rows of an operator other keys, with a function of yours."""
    from epochal.tools.edit_state.rekey import plan_rekey
    from epochal.tools.read_state.read_target import given_schemas

    function = load_function(key_function, "--key-function")
    merge = merge_function and load_function(merge_function, "--merge-function")
    schemas = given_schemas(key_schema, value_schema)
    run_state_edit(
        directory,
        "state-rekey",
        sink,
        lambda surveyed, output: plan_rekey(
            surveyed,
            function,
            merge=merge or None,
            key_schema=schemas.key,
            value_schema=schemas.value,
            operator_id=operator,
            store_name=store,
            sink=output,
        ),
        flags,
    )


@app.command()
@takes_groups
def split(
    directory: Directory,
    columns: Annotated[
        str, typer.Option(metavar="NAME,NAME", help="The value columns that the new operator gets.")
    ],
    to: FreeOperator,
    operator: Operator = 0,
    *,
    sink: SinkFlags,
    flags: Flags,
) -> None:
    """Move some value columns of an operator to a new operator with the same keys."""
    from epochal.tools.edit_state.reshape import plan_split

    names = [name.strip() for name in columns.split(",")]
    run_state_edit(
        directory,
        "state-split",
        sink,
        lambda surveyed, output: plan_split(surveyed, names, to, operator_id=operator, sink=output),
        flags,
    )


@app.command()
@takes_groups
def merge(
    directory: Directory,
    other: Annotated[
        int, typer.Option(metavar="N", help="The operator whose columns are added. It ends.")
    ],
    operator: Operator = 0,
    fill: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=JSON",
            help="What a column has for keys that its operator lacks, instead of null; may be "
            "repeated.",
        ),
    ] = None,
    *,
    sink: SinkFlags,
    flags: Flags,
) -> None:
    """Merge the state of two operators with the same keys into one."""
    from epochal.tools.edit_state.reshape import plan_merge

    pairs = parse_pairs(fill or [], "--fill", "NAME=JSON")
    values = {name: parse_json(text, "--fill") for name, text in pairs.items()}
    run_state_edit(
        directory,
        "state-merge",
        sink,
        lambda surveyed, output: plan_merge(
            surveyed, other, operator_id=operator, fill=values, sink=output
        ),
        flags,
    )


@app.command()
@takes_groups
def move(
    directory: Directory, to: FreeOperator, operator: Operator = 0, *, sink: SinkFlags, flags: Flags
) -> None:
    """Give the state of an operator another number, for a query that numbers them otherwise."""
    from epochal.tools.edit_state.reshape import plan_move

    run_state_edit(
        directory,
        "state-move",
        sink,
        lambda surveyed, output: plan_move(surveyed, operator, to, sink=output),
        flags,
    )


def load_function(text: str, option: str) -> Callable[..., Any]:
    """Load `MODULE:FUNCTION`, where MODULE is a module's name or a .py file."""
    name, _, attribute = text.rpartition(":")
    if not (name and attribute):
        raise OptionError(f"{option} {text!r} is not of the form MODULE:FUNCTION.")
    try:
        module: Any = _load_file(name) if name.endswith(".py") else _load_module(name)
    except (ImportError, OSError, SyntaxError) as error:
        raise OptionError(f"{option} {text!r}: {name} cannot be imported: {error}") from error
    target = getattr(module, attribute, None)
    if not callable(target):
        raise OptionError(f"{option} {text!r}: {name} has no function {attribute!r}.")
    function: Callable[..., Any] = target
    return function


def _load_module(name: str) -> Any:
    # As with `python -m`, modules of the working directory are found too.
    if "" not in sys.path:
        sys.path.insert(0, "")
    return import_module(name)


def _load_file(path: str) -> Any:
    spec = spec_from_file_location(Path(path).stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
