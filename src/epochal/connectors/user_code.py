"""Marks the errors of the user's own functions, so that a report shows the user's lines first.

A traceback of a task begins with the frames of our loop, which say nothing to the user. A marked
error has its traceback from the first frame that is not ours.
"""

from __future__ import annotations

import os
import traceback
from pathlib import Path
from types import TracebackType

MARK = "_epochal_user_traceback"

_OURS = f"{Path(__file__).parents[1]}{os.sep}"


class UserCode:
    """`with USER_CODE:` around a call of the user's function marks the error that it raises."""

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        frames: TracebackType | None,
    ) -> None:
        if isinstance(error, Exception) and not hasattr(error, MARK):
            while frames is not None and frames.tb_frame.f_code.co_filename.startswith(_OURS):
                frames = frames.tb_next
            setattr(error, MARK, frames)


USER_CODE = UserCode()


def is_users(error: BaseException) -> bool:
    """Return whether the user's function raised the error, or it is about what it returned."""
    return hasattr(error, MARK)


def report_of(error: BaseException) -> str:
    """Return the traceback as text; of a user's error only from the user's first frame on.

    It is empty if a user's error has no such frame, because it is about what a function returned.
    """
    if not is_users(error):
        return "".join(traceback.format_exception(error))
    frames: TracebackType | None = getattr(error, MARK)
    if frames is None:
        return ""
    return "".join(traceback.format_exception(type(error), error, frames))


def name_of(function: object) -> str:
    """Return how to call a user's function in a message."""
    return str(getattr(function, "__qualname__", None) or type(function).__qualname__)
