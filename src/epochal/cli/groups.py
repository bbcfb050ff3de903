"""Command groups that import a command's module only when the command is called.

A user who runs `epochal checkpoint show` should not wait for the import of the state code. Each
group therefore lists its commands in a table of `module:app`. The app is a Typer that contains the
command, or is itself the subgroup if it has the command's name.
"""

from __future__ import annotations

from difflib import get_close_matches
from importlib import import_module
from typing import Any, ClassVar

import typer
from typer.core import TyperGroup


class LazyGroup(TyperGroup):
    """A group that finds its commands in `table`: command name -> `module:app`."""

    table: ClassVar[dict[str, str]] = {}

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.table)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in self.table and not (args[0][:1] == "-" or ctx.resilient_parsing):
            close = get_close_matches(args[0], self.table)
            asked = f" Did you mean {' or '.join(close)}?" if close else ""
            ctx.fail(f"No such command '{args[0]}'.{asked}")
        return super().resolve_command(ctx, args)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        target = self.table.get(cmd_name)
        if target is None:
            return None
        module, _, name = target.partition(":")
        group: Any = typer.main.get_group(getattr(import_module(module), name))
        command = group if group.name == cmd_name else group.commands[cmd_name]
        # Otherwise the list of commands would cut off the first sentence after 45 characters.
        command.short_help = first_sentence(command.help or "")
        return command


def first_sentence(text: str) -> str:
    """The first sentence of a help text."""
    paragraph = " ".join(text.strip().partition("\n\n")[0].split())
    sentence, dot, _ = paragraph.partition(". ")
    return f"{sentence}." if dot else paragraph


def group_app(name: str, commands: type[LazyGroup], help_text: str) -> typer.Typer:
    """The app of a group; without arguments it shows its help."""
    return typer.Typer(
        name=name,
        cls=commands,
        help=help_text,
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
    )
