"""The commands in a remedy, with the places that they are about. Pure."""

from __future__ import annotations

import re
import shlex

_COMMAND = re.compile(r"`(epochal [^`]+)`")
_UNDO = "epochal checkpoint undo"
_UNKNOWN = "N"
"""Stands for a number in the remedies of the table, where the checkpoint does not give one."""


def with_places(
    remedy: str, checkpoint: str, output: str | None = None, *, no_file_sink: bool = False
) -> str:
    """The remedy with the places of this checkpoint, and of its output, in its commands.

    Without an output, `OUTPUT` stays: only the user knows where the query writes to.
    """
    places = {"CHECKPOINT": checkpoint, "OUTPUT": output or "OUTPUT"}

    def placed(found: re.Match[str]) -> str:
        command = found[1]
        if no_file_sink:
            instead = "" if command.startswith(_UNDO) else " --no-file-sink"
            command = command.replace(" --sink OUTPUT", instead)
        words = (shlex.quote(places[word]) if word in places else word for word in command.split())
        return f"`{' '.join(words)}`"

    return _COMMAND.sub(placed, remedy)


def commands_to_run(remedy: str, checkpoint: str) -> list[str]:
    """The commands of a remedy for this checkpoint, as lines that a shell runs.

    Commands that edit only show their plan unless they have `--execute`, so it is added. A command
    with an open number is left out.
    """
    return [
        f"{with_places(f'`{command}`', checkpoint).strip('`')} --execute"
        for command in _COMMAND.findall(remedy)
        if _UNKNOWN not in command.split()
    ]
