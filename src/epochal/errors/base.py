"""The root of the tree, and the errors that do not belong to one part of the package."""

from __future__ import annotations

import errno
from enum import StrEnum


class FailureKind(StrEnum):
    """What a query does about an error; see `failures` and docs/decisions/0029."""

    REPEATS = "repeats"
    """The same rows or settings would fail again: end the query."""
    UNAVAILABLE = "unavailable"
    """Something outside of the query does not work: wait until it does."""
    REFUSED = "refused"
    """Something outside of the query says no: wait, unless it never said yes."""
    LOST = "lost"
    """A process, a host or a connection was lost, or the cause is unknown: restart."""


class EpochalError(Exception):
    """The root: catch it to catch every error that Epochal raises on purpose."""

    condition: str = ""
    failure: FailureKind | None = None
    """What a query does about it; None if its cause decides."""

    def __init_subclass__(cls, failure: FailureKind | None = None) -> None:
        cls.failure = failure or cls.failure


class OptionError(EpochalError, failure=FailureKind.REPEATS):
    """An option, argument or parameter is unknown, missing or out of range."""


class StorageError(EpochalError):
    """Storage failed for a reason other than that a file exists or is missing."""

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(url, reason)
        self.url, self.reason = url, reason

    @classmethod
    def of(cls, url: str, error: OSError) -> StorageError:
        """The error for one of the operating system: says what it is. Raise it `from error`."""
        text = error.strerror or str(error) or type(error).__name__
        name = REFUSALS.get(error.errno or 0)
        return cls(url, f"{name} ({text})" if name else text)

    def __str__(self) -> str:
        return f"{self.url}: {self.reason}"


REFUSALS = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EROFS: "the file system is mounted read-only",
    errno.EACCES: "access is denied",
    errno.EPERM: "access is denied",
}
"""What storage refuses until somebody changes something, by the operating system's number."""


class LostAnswerError(StorageError, failure=FailureKind.UNAVAILABLE):
    """A change was requested and no answer came: it may or may not have been made."""

    def __str__(self) -> str:
        return (
            f"{self.url}: {self.reason}. The change may or may not have been made: check before "
            f"you retry it."
        )


class ComponentError(EpochalError):
    """A component that a test or a demo needs cannot be found, downloaded or started."""
