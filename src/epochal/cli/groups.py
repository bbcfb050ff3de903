"""Command groups whose commands are imported when they are called, not before.

A user who runs `epochal checkpoint show` should not wait for the state code and its columns to be
imported. Each group therefore names its commands in a table of `module:app`; the app is a Typer
that holds the command (or is the subgroup itself, if it has the command's name).
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, ClassVar

import typer
from typer.core import TyperGroup


class LazyGroup(TyperGroup):
    """A group that finds its commands through `table`: command name -> `module:app`."""

    table: ClassVar[dict[str, str]] = {}

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.table)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        target = self.table.get(cmd_name)
        if target is None:
            return None
        module, _, name = target.partition(":")
        group: Any = typer.main.get_group(getattr(import_module(module), name))
        return group if group.name == cmd_name else group.commands[cmd_name]


def group_app(name: str, commands: type[LazyGroup], help_text: str) -> typer.Typer:
    """The app of a group, which says what there is when it is called with nothing."""
    return typer.Typer(
        name=name,
        cls=commands,
        help=help_text,
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
    )
