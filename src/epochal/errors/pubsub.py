"""Errors of Pub/Sub."""

from __future__ import annotations

from epochal.errors.base import EpochalError


class PubSubError(EpochalError):
    """Pub/Sub rejected a request or failed."""


class PubSubFailedError(PubSubError):
    """A call or a stream failed: `code` is gRPC's name for the status.

    `resource` is the full name of the resource in the request, `advice` what to do about it.
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
    """A retry would fail too: something must be changed first."""


class PubSubUnavailableError(PubSubFailedError):
    """All retries within the time allowed failed; it may work later."""


class PubSubClosedError(PubSubError):
    """A client was used after it was closed."""


class PayloadError(PubSubError):
    """A value or a schema cannot be turned into messages."""


class PubSubReaderError(PubSubError):
    """A process that reads Pub/Sub for Spark failed, or cannot be started or reached."""


class PubSubRefusedError(PubSubError):
    """The embedded server rejects a call as Google would: `code` is gRPC's name for the status.

    `reasons` maps acknowledgement ids to the reason, when only some ids of a call were rejected.
    """

    def __init__(self, code: str, text: str, reasons: dict[str, str] | None = None) -> None:
        super().__init__(code, text, reasons)
        self.code, self.text, self.reasons = code, text, reasons or {}

    def __str__(self) -> str:
        return f"{self.code}: {self.text}"
