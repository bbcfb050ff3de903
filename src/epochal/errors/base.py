"""The root, and what goes wrong anywhere."""

from __future__ import annotations


class EpochalError(Exception):
    """The root: catch this to catch everything Epochal raises on purpose."""

    condition: str = ""


class OptionError(EpochalError):
    """An option, argument or parameter is unknown, missing or out of range."""


class StorageError(EpochalError):
    """The storage below a path failed in a way that is not about one file's presence."""

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(url, reason)
        self.url, self.reason = url, reason

    def __str__(self) -> str:
        return f"{self.url}: {self.reason}"


class LostAnswerError(StorageError):
    """A change was asked for and no answer came back: it may or may not have happened."""

    def __str__(self) -> str:
        return (
            f"{self.url}: {self.reason}. Whether the change was made is not known: look before "
            f"asking again."
        )


class ComponentError(EpochalError):
    """A real component that a test or a demo needs cannot be found, fetched or started."""
