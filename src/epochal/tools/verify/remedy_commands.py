"""Takes the commands out of a remedy, in the form in which a shell runs them. Pure."""

from __future__ import annotations

import re
import shlex

_COMMAND = re.compile(r"`(epochal [^`]+)`")
_UNKNOWN = "N"
"""Stands for a number in the remedies of the table, where the checkpoint does not give one."""


def commands_in(remedy: str) -> list[list[str]]:
    """The words of each command that a remedy names, with its placeholders."""
    return [found.split() for found in _COMMAND.findall(remedy)]


def commands_to_run(remedy: str, checkpoint: str) -> list[str]:
    """The commands of a remedy for this checkpoint, as lines that a shell runs.

    Commands that edit only show their plan unless they have `--execute`, so it is added. `OUTPUT`
    stays: only the user knows where the query writes to. A command with an open number is left out.
    """
    return [
        shlex.join([*(checkpoint if word == "CHECKPOINT" else word for word in words), "--execute"])
        for words in commands_in(remedy)
        if _UNKNOWN not in words
    ]
