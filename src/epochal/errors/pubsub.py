"""Errors of Pub/Sub."""

from __future__ import annotations

from epochal.errors.base import EpochalError


class PubSubError(EpochalError):
    """Pub/Sub did not do what it was asked."""


class PubSubRefusedError(PubSubError):
    """The embedded server refuses a call, in Google's words: `code` is gRPC's name for the status.

    `reasons` says per acknowledgement id why it was refused, where only some of a call were.
    """

    def __init__(self, code: str, text: str, reasons: dict[str, str] | None = None) -> None:
        super().__init__(code, text, reasons)
        self.code, self.text, self.reasons = code, text, reasons or {}

    def __str__(self) -> str:
        return f"{self.code}: {self.text}"
