"""`epochal state …`: the group; its commands are imported when they are called."""

from __future__ import annotations

from typing import ClassVar

from epochal.cli.groups import LazyGroup, group_app


class StateCommands(LazyGroup):
    """Reading commands first, then those that write."""

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
        "repair": "epochal.cli.state.state_edit:app",
    }


app = group_app(
    "state",
    StateCommands,
    "The state of a query, in Spark's own files: read it, compare it, change it.",
)


@app.callback()
def state() -> None:
    """The state of a query, in Spark's own files: read it, compare it, change it.

    Writing commands change nothing until --execute, and `epochal checkpoint undo` takes them back.
    """
