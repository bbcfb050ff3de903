"""What commands consist of: groups, arguments and options, and what Ctrl-C has left.

This module imports little more than Typer: importing it must not slow down commands that read.

A command that changes nothing need not care about Ctrl-C: `main` says so. A command that changes
something runs its work under `says_when_interrupted`, with a function that looks at what has been
done.
"""

from __future__ import annotations

import inspect
import json
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, is_dataclass
from difflib import get_close_matches
from functools import wraps
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar, get_type_hints

import typer
from typer.core import TyperGroup

from epochal.errors import OptionError
from epochal.files import Bounds, Files, open_files

if TYPE_CHECKING:
    from epochal.tools.edit.edit_file_log import NamedSink

Command = TypeVar("Command", bound=Callable[..., Any])

EXIT_INTERRUPTED = 130
NOTHING_CHANGED = "Interrupted. Nothing was changed."


class CommandGroup(TyperGroup):
    """A group that imports a command's module only when the command is called.

    A user who runs `epochal checkpoint show` should not wait for the import of the state code. So
    the commands of other modules are in `table`: command name -> `module:app`. The app is a Typer
    that contains the command, or is itself the subgroup if it has the command's name.
    """

    table: ClassVar[Mapping[str, str]] = {}

    def list_commands(self, ctx: Any) -> list[str]:
        return [*self.commands, *self.table]

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        names = self.list_commands(ctx)
        if args and args[0] not in names and not (args[0][:1] == "-" or ctx.resilient_parsing):
            close = get_close_matches(args[0], names)
            asked = f" Did you mean {' or '.join(close)}?" if close else ""
            ctx.fail(f"No such command '{args[0]}'.{asked}")
        return super().resolve_command(ctx, args)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        command: Any = self.commands.get(cmd_name)
        if cmd_name in self.table:
            module, _, name = self.table[cmd_name].partition(":")
            group: Any = typer.main.get_group(getattr(import_module(module), name))
            command = group if group.name == cmd_name else group.commands[cmd_name]
        if command is not None:
            # Otherwise the list of commands would cut off the first sentence after 45 characters.
            paragraph = " ".join((command.help or "").strip().partition("\n\n")[0].split())
            sentence, dot, _ = paragraph.partition(". ")
            command.short_help = f"{sentence}." if dot else paragraph
        return command


def group_class(commands: Mapping[str, str]) -> type[CommandGroup]:
    """A class of groups that import these commands, given as `module:app` by name."""

    class LazyGroup(CommandGroup):
        table = commands

    return LazyGroup


def group_app(name: str, help_text: str, commands: Mapping[str, str] | None = None) -> typer.Typer:
    """The app of a group; without arguments it shows its help."""
    return CommandApp(
        name=name,
        cls=group_class(commands or {}),
        help=help_text,
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
    )


def option(metavar: str, meaning: str, *names: str, default: Any = None, **rest: Any) -> Any:
    """An option with a value, for which `metavar` stands. It has the parameter's name by default.

    It stands for the default of a command's parameter, or of a field of a group: whoever makes such
    a group must give all values. With `default=...` the option is required.
    """
    return typer.Option(default, *names, metavar=metavar, help=meaning, **rest)


def flag(name: str, meaning: str) -> Any:
    return typer.Option(False, name, help=meaning)


def argument(metavar: str, meaning: str, *, default: Any = ...) -> Any:
    """An argument, which is required if it has no default."""
    return typer.Argument(default, metavar=metavar, help=meaning)


Directory = Annotated[
    str,
    typer.Argument(
        metavar="DIR", help="The query's checkpoint directory: a path, or a URL such as s3://…"
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]

NoFileSink = Annotated[
    bool, typer.Option("--no-file-sink", help="The query does not write to a file sink.")
]

Operator = Annotated[int, typer.Option(metavar="N", help="The id of the stateful operator.")]
Store = Annotated[
    str, typer.Option(metavar="NAME", help="The state store, if the operator has several.")
]
Timers = Annotated[bool, typer.Option("--timers", help="Use the timers of transformWithState.")]
Conf = Annotated[
    list[str] | None, typer.Option(metavar="KEY=VALUE", help="A setting of Spark; may be repeated.")
]
KEY_HELP = 'The key as a JSON object, as `read --json` prints it: {"k": 1}.'
BROKERS_HELP = "The Kafka brokers; separate several with commas."
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
    values: Sequence[str] | None, option: str, form: str = SETTING, *, may_be_empty: bool = False
) -> dict[str, str]:
    """Parse the values of an option of the form `A=B` into a dictionary; `form` names the parts."""
    pairs: dict[str, str] = {}
    for value in values or ():
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


def parse_json(text: str, origin: str) -> Any:
    """Parse JSON; `origin` names where it comes from in the error message."""
    try:
        return json.loads(text)
    except ValueError as error:
        raise OptionError(
            f"{origin} {text!r} is not valid JSON ({error}). Write {EXAMPLE}."
        ) from None


EXAMPLE = """an object in single quotes, such as '{"user": 1}'"""


@dataclass(frozen=True, kw_only=True)
class SinkFlags:
    """Where the query's file sink writes: a checkpoint does not say it."""

    sink: str | None = option("OUTPUT", "The output directory of the query's file sink.")
    no_file_sink: NoFileSink = False

    def open(self) -> NamedSink:
        """Open the output directory of `--sink`; `--no-file-sink` says that there is none."""
        from epochal.tools.edit.edit_file_log import NamedSink

        if self.sink is not None and self.no_file_sink:
            raise OptionError("Give one of --sink and --no-file-sink, not both.")
        return NamedSink(None if self.sink is None else open_place(self.sink), self.no_file_sink)


@dataclass(frozen=True, kw_only=True)
class StoreChoice:
    """A store of an operator, or a variable."""

    operator: Operator = 0
    store: Store = "default"
    variable: Annotated[
        str | None, typer.Option(metavar="NAME", help="A state variable of transformWithState.")
    ] = None


class CommandApp(typer.Typer):
    """An app whose commands may take groups of options, which are dataclasses."""

    def command(self, *args: Any, **rest: Any) -> Callable[[Command], Command]:
        register = super().command(*args, **rest)

        def add(command: Command) -> Command:
            register(_spread_groups(command))
            return command

        return add


def _spread_groups(command: Callable[..., Any]) -> Callable[..., Any]:
    """Replace each parameter that is a group by its options, which follow the command's own."""
    signature = inspect.signature(command, eval_str=True)
    own: list[inspect.Parameter] = []
    grouped: list[inspect.Parameter] = []
    groups: dict[str, tuple[Any, list[str]]] = {}
    for parameter in signature.parameters.values():
        group = parameter.annotation
        if not (isinstance(group, type) and is_dataclass(group)):
            own.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
            continue
        hints = get_type_hints(group, include_extras=True)
        options = inspect.signature(group).parameters
        grouped += [option.replace(annotation=hints[name]) for name, option in options.items()]
        groups[parameter.name] = group, list(options)
    parameters = [*own, *grouped]

    @wraps(command)
    def run(**arguments: Any) -> None:
        for name, (group, options) in groups.items():
            arguments[name] = group(**{option: arguments.pop(option) for option in options})
        command(**arguments)

    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {option.name: option.annotation for option in parameters}
    return run


class Interrupted(Exception):
    """Ctrl-C, and what it has left."""


@contextmanager
def says_when_interrupted(what_is_left: Callable[[], str]) -> Iterator[None]:
    """Run the block; on Ctrl-C raise `Interrupted` with the words of `what_is_left`."""
    try:
        yield
    except KeyboardInterrupt:
        # A second Ctrl-C must not keep the user from learning what the first one left.
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            raise Interrupted(what_is_left()) from None
        finally:
            signal.signal(signal.SIGINT, before)
