"""The root of the tree, and the errors that do not belong to one part of the package."""

from __future__ import annotations


class EpochalError(Exception):
    """The root: catch it to catch every error that Epochal raises on purpose."""

    condition: str = ""


class OptionError(EpochalError):
    """An option, argument or parameter is unknown, missing or out of range."""


class StorageError(EpochalError):
    """Storage failed for a reason other than that a file exists or is missing."""

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(url, reason)
        self.url, self.reason = url, reason

    def __str__(self) -> str:
        return f"{self.url}: {self.reason}"


class LostAnswerError(StorageError):
    """A change was requested and no answer came: it may or may not have been made."""

    def __str__(self) -> str:
        return (
            f"{self.url}: {self.reason}. The change may or may not have been made: check before "
            f"you retry it."
        )


class ComponentError(EpochalError):
    """A component that a test or a demo needs cannot be found, downloaded or started."""
