"""Completes the commands of tests whose query writes to no file sink."""

from collections.abc import Sequence

ASKING = frozenset(
    [
        "rewind",
        "set-offsets",
        "repair",
        "clone",
        "put",
        "delete",
        "repartition",
        "convert",
        "evolve",
        "rekey",
        "split",
        "merge",
        "move",
    ]
)
"""The commands that ask for the query's file sink."""


def with_no_sink(words: Sequence[str]) -> tuple[str, ...]:
    """The words of a command, which says that there is no file sink unless it names one."""
    asks = not {"--sink", "--no-file-sink"}.intersection(words) and not ASKING.isdisjoint(words[:2])
    return (*words, "--no-file-sink") if asks else tuple(words)
