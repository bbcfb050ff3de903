"""Errors of Pub/Sub."""

from __future__ import annotations

from epochal.errors.base import EpochalError


class PubSubError(EpochalError):
    """Pub/Sub did not do what it was asked."""


class PubSubFailedError(PubSubError):
    """A call or a stream failed: `code` is gRPC's name for the status.

    `resource` is the full name of what was asked for, `advice` what to do about it.
    """

    def __init__(self, what: str, resource: str, code: str, text: str, advice: str) -> None:
        super().__init__(what, resource, code, text, advice)
        self.what, self.resource, self.code = what, resource, code
        self.text, self.advice = text, advice

    def __str__(self) -> str:
        return (
            f"Pub/Sub: {self.what} {self.resource} failed: {self.code}: {self.text} {self.advice}"
        )


class PubSubRejectedError(PubSubFailedError):
    """It will fail as often as it is tried: something must be changed first."""


class PubSubUnavailableError(PubSubFailedError):
    """It was tried again for as long as allowed; later it may work."""


class PubSubClosedError(PubSubError):
    """A client was used after it was closed."""


class PayloadError(PubSubError):
    """A value cannot be a message, or a schema cannot be one of messages."""


class PubSubReaderError(PubSubError):
    """A process that reads Pub/Sub for Spark failed, or cannot be started or reached."""


class PubSubRefusedError(PubSubError):
    """The embedded server refuses a call, in Google's words: `code` is gRPC's name for the status.

    `reasons` says per acknowledgement id why it was refused, where only some of a call were.
    """

    def __init__(self, code: str, text: str, reasons: dict[str, str] | None = None) -> None:
        super().__init__(code, text, reasons)
        self.code, self.text, self.reasons = code, text, reasons or {}

    def __str__(self) -> str:
        return f"{self.code}: {self.text}"
