"""Arguments and options that several commands share, each declared once, and the places they name.


This module imports little more than Typer: importing it must not slow down commands that read.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, is_dataclass
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any

import typer

from epochal.errors import EpochalError, OptionError
from epochal.files import Bounds, Files, open_files

if TYPE_CHECKING:
    from epochal.tools.edit.edit_file_log import NamedSink
    from epochal.tools.read_state.read_target import StateBatch


Directory = Annotated[
    str,
    typer.Argument(
        metavar="DIR", help="The query's checkpoint directory: a path, or a URL such as s3://…"
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
JsonLines = Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")]

Execute = Annotated[
    bool, typer.Option("--execute", help="Apply the changes. Without it, only show the plan.")
]
Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", help="List every file of the plan, not only directories.")
]
Yes = Annotated[
    bool, typer.Option("--yes", "-y", help="Do not ask before what cannot be undone; for scripts.")
]
SettleSeconds = Annotated[
    float,
    typer.Option(
        metavar="S",
        help="How long to watch for a running query before changing anything, in seconds.",
        min=0,
    ),
]
EvenIfBusy = Annotated[
    bool,
    typer.Option(
        "--even-if-busy", help="Continue even if something seems to write to the checkpoint."
    ),
]
Sink = Annotated[
    str | None,
    typer.Option(metavar="OUTPUT", help="The output directory of the query's file sink."),
]
NoFileSink = Annotated[
    bool, typer.Option("--no-file-sink", help="The query does not write to a file sink.")
]

Operator = Annotated[int, typer.Option(metavar="N", help="The id of the stateful operator.")]
Store = Annotated[
    str, typer.Option(metavar="NAME", help="The state store, if the operator has several.")
]
Batch = Annotated[
    int | None, typer.Option(metavar="N", help="Read the state as of this batch. [default: newest]")
]
Partition = Annotated[int | None, typer.Option(metavar="N", help="Read only this partition.")]
Side = Annotated[
    str | None,
    typer.Option(metavar="left|right", help="Read the rows that one side of a join keeps."),
]
Variable = Annotated[
    str | None, typer.Option(metavar="NAME", help="A state variable of transformWithState.")
]
Timers = Annotated[bool, typer.Option("--timers", help="Use the timers of transformWithState.")]
_KEY_SCHEMA = (
    "The columns of the key, if the checkpoint has no schema file (Spark before 3.1): "
    '"user string, n bigint".'
)
_VALUE_SCHEMA = "The columns of the value, likewise."
KeySchema = Annotated[str | None, typer.Option(metavar="DDL", help=_KEY_SCHEMA)]
ValueSchema = Annotated[str | None, typer.Option(metavar="DDL", help=_VALUE_SCHEMA)]
# For commands that have --side.
SideKeySchema = Annotated[
    str | None,
    typer.Option(
        "--key-schema",
        metavar="DDL",
        help=f"{_KEY_SCHEMA} With --side, the columns of the join key.",
    ),
]
SideValueSchema = Annotated[
    str | None,
    typer.Option(
        "--value-schema",
        metavar="DDL",
        help=f"{_VALUE_SCHEMA} With --side, the columns of that side.",
    ),
]
Limit = Annotated[int | None, typer.Option(metavar="N", help="Show at most N rows.", min=0)]

Conf = Annotated[
    list[str] | None, typer.Option(metavar="KEY=VALUE", help="A setting of Spark; may be repeated.")
]

_KEY = typer.Option(
    metavar="JSON", help='The key as a JSON object, as `read --json` prints it: {"k": 1}.'
)
Key = Annotated[str, _KEY]
OptionalKey = Annotated[str | None, _KEY]

_BOOTSTRAP_SERVERS = typer.Option(
    metavar="HOST:PORT", help="The Kafka brokers; separate several with commas."
)
BootstrapServers = Annotated[str, _BOOTSTRAP_SERVERS]
OptionalBootstrapServers = Annotated[str | None, _BOOTSTRAP_SERVERS]
SETTING = "KEY=VALUE"
ClientConfig = Annotated[
    list[str] | None,
    typer.Option(
        metavar=SETTING, help="A setting of the Kafka client (librdkafka); may be repeated."
    ),
]

Host = Annotated[str, typer.Option(metavar="HOST", help="The address to listen on.")]
Port = Annotated[
    int, typer.Option(metavar="PORT", min=0, max=65535, help="The port; 0 chooses a free one.")
]


def parse_pairs(
    values: Sequence[str], option: str, form: str = SETTING, *, may_be_empty: bool = False
) -> dict[str, str]:
    """Parse the values of an option of the form `A=B` into a dictionary; `form` names the parts."""
    pairs: dict[str, str] = {}
    for value in values:
        left, equals, right = value.partition("=")
        if not (left and equals and (right or may_be_empty)):
            # Settings of clients may be passwords.
            shown = "" if form == SETTING else f", not {value!r}"
            raise OptionError(
                f"{option} takes {form}{shown}. Add the part before or after the equals sign."
            )
        pairs[left] = right
    return pairs


command_bounds = ContextVar("command_bounds", default=Bounds())  # noqa: B039 - frozen
"""What this command may read at once; the options of the command line change it."""


# Only what the user typed is opened here. What a checkpoint says never names a place.
def open_place(location: str) -> Files:
    """Open a path or a URL, within the bounds that the `--most-...-bytes` options change."""
    return open_files(location, bounds=command_bounds.get())


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkFlags:
    """Where the query's file sink writes: a checkpoint does not say it."""

    sink: Sink = None
    no_file_sink: NoFileSink = False

    def open(self) -> NamedSink:
        """Open the output directory of `--sink`; `--no-file-sink` says that there is none."""
        from epochal.tools.edit.edit_file_log import NamedSink

        if self.sink is not None and self.no_file_sink:
            raise OptionError("Give one of --sink and --no-file-sink, not both.")
        return NamedSink(None if self.sink is None else open_place(self.sink), self.no_file_sink)


def takes_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of a dataclass in place of each parameter that is one."""
    signature = inspect.signature(command, eval_str=True)
    parameters: list[inspect.Parameter] = []
    groups: dict[str, tuple[Any, list[str]]] = {}
    for parameter in signature.parameters.values():
        own = [parameter]
        group = parameter.annotation
        if isinstance(group, type) and is_dataclass(group):
            own = list(inspect.signature(group, eval_str=True).parameters.values())
            groups[parameter.name] = group, [option.name for option in own]
        parameters += [option.replace(kind=inspect.Parameter.KEYWORD_ONLY) for option in own]

    @wraps(command)
    def run(**arguments: Any) -> None:
        for name, (group, options) in groups.items():
            arguments[name] = group(**{option: arguments.pop(option) for option in options})
        command(**arguments)

    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return run


def open_state(
    directory: str,
    batch: int | None = None,
    key_schema: str | None = None,
    value_schema: str | None = None,
) -> StateBatch:
    """Open the state as of a batch; if there is no checkpoint at all, say so as other commands do.

    Spark's own words, which the library keeps to, are that no batch has been committed.
    """
    from epochal.tools.inspect.listing import require_checkpoint
    from epochal.tools.read_state.read import open_batch

    files = open_place(directory)
    try:
        return open_batch(files, batch, key_schema, value_schema)
    except (EpochalError, OSError):
        require_checkpoint(files)
        raise
