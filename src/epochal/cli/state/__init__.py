"""The command group `epochal state`; a command's module is imported when it is called."""

from __future__ import annotations

from typing import ClassVar

from epochal.cli.groups import LazyGroup, group_app

HELP = "Read, compare and change the state of a query in Spark's own files."


class StateCommands(LazyGroup):
    """Commands that read, then commands that write."""

    table: ClassVar[dict[str, str]] = {
        "show": "epochal.cli.state.state_show:app",
        "read": "epochal.cli.state.state_read:app",
        "get": "epochal.cli.state.state_read:app",
        "diff": "epochal.cli.state.state_read:app",
        "export": "epochal.cli.state.state_read:app",
        "stats": "epochal.cli.state.state_show:app",
        "verify": "epochal.cli.state.state_show:app",
        "put": "epochal.cli.state.state_edit:app",
        "delete": "epochal.cli.state.state_edit:app",
        "repartition": "epochal.cli.state.state_edit:app",
        "convert": "epochal.cli.state.state_edit:app",
        "evolve": "epochal.cli.state.state_edit:app",
        "rekey": "epochal.cli.state.state_reshape:app",
        "split": "epochal.cli.state.state_reshape:app",
        "merge": "epochal.cli.state.state_reshape:app",
        "move": "epochal.cli.state.state_reshape:app",
        "repair": "epochal.cli.state.state_edit:app",
    }


app = group_app("state", StateCommands, HELP)


@app.callback()
def state() -> None:
    """Read, compare and change the state of a query in Spark's own files.

    Commands that write change nothing without --execute; `epochal checkpoint undo` undoes them.
    """
