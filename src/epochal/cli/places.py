"""Opens the places that a command line names: checkpoints and output directories.

Only what the user typed is opened here. What a checkpoint says never names a place.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING

from epochal.errors import OptionError
from epochal.files import Bounds, Files, open_files

if TYPE_CHECKING:
    from epochal.tools.edit.find_sink import NamedSink


command_bounds = ContextVar("command_bounds", default=Bounds())  # noqa: B039 - frozen
"""What this command may read at once; the options of the command line change it."""


def open_place(location: str) -> Files:
    """Open a path or a URL, within the bounds that the `--most-...-bytes` options change."""
    return open_files(location, bounds=command_bounds.get())


def open_sink(sink: str | None, no_file_sink: bool) -> NamedSink:
    """Open the output directory of `--sink`; `--no-file-sink` says that there is none."""
    from epochal.tools.edit.find_sink import NamedSink

    if sink is not None and no_file_sink:
        raise OptionError("Give one of --sink and --no-file-sink, not both.")
    return NamedSink(None if sink is None else open_place(sink), no_file_sink)
