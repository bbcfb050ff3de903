"""Decides which gRPC statuses are retried and which end the query. Pure.

The same rules cover streams and unary calls; `docs/pubsub.md` shows them. Retries are bounded:
after `retryTimeout` without a success, the caller gives up and reports the last status.

Note: gRPC also reports credentials that cannot be renewed as UNAVAILABLE. `judge` recognises this
case by its text, because retrying would not help.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from epochal.errors import PubSubFailedError, PubSubRejectedError, PubSubUnavailableError


@dataclass(frozen=True, slots=True)
class RetryAdvice:
    """Whether to retry after a status, and what to tell the user."""

    retryable: bool
    advice: str


RETRIED: Mapping[str, str] = {
    "OK": "The server ended the stream: reconnect.",
    "UNAVAILABLE": "The service cannot be reached: check the network and endpoint.",
    "DEADLINE_EXCEEDED": "No answer in time: check the network and endpoint.",
    "INTERNAL": "The service failed. If this persists, see Google's status page.",
    "UNKNOWN": "The service failed. If this persists, see Google's status page.",
    "ABORTED": "The service aborted the call; it can be retried.",
    "RESOURCE_EXHAUSTED": "A quota is exhausted: send less, or request more quota.",
}
FATAL: Mapping[str, str] = {
    "NOT_FOUND": "It does not exist, or was deleted. Create it, or correct the id or the project.",
    "PERMISSION_DENIED": "Grant the account roles/pubsub.subscriber on the subscription to read or "
    "seek, roles/pubsub.publisher on the topic to write, roles/pubsub.editor on the project to "
    "create or delete subscriptions.",
    "UNAUTHENTICATED": "The credentials are missing, wrong or expired: renew them.",
    "FAILED_PRECONDITION": "The resource does not allow this in its current state. If the "
    "subscription is detached, create a new one.",
    "INVALID_ARGUMENT": "Pub/Sub rejects the request: see the status text.",
    "OUT_OF_RANGE": "Pub/Sub rejects the request: see the status text.",
    "ALREADY_EXISTS": "Choose another id, or use the one that exists.",
    "UNIMPLEMENTED": "The server does not implement the call: check the endpoint.",
    "CANCELLED": "The client cancelled the call.",
    "DATA_LOSS": "The service lost data: see Google's status page.",
}
_STALE = "The credentials cannot be renewed: log in again, or use a valid key."
_PLUGIN = "getting metadata from plugin failed"
_HOPELESS = (
    *("invalid_grant", "invalid_client", "unauthorized_client"),
    *("disabled", "reauth", "expired"),
)


def judge(code: str, text: str = "") -> RetryAdvice:
    """Judge a status; `text` is the message that came with it."""
    lowered = text.lower()
    if code == "UNAVAILABLE" and _PLUGIN in lowered and any(w in lowered for w in _HOPELESS):
        return RetryAdvice(False, _STALE)
    if code in RETRIED:
        return RetryAdvice(True, RETRIED[code])
    return RetryAdvice(False, FATAL.get(code, "An unexpected status."))


def failure(
    what: str, resource: str, code: str, text: str, *, tried_s: float = 0
) -> PubSubFailedError:
    """Return the error to raise for a status that is not retried, or no longer retried."""
    verdict = judge(code, text)
    advice = verdict.advice
    if tried_s:
        advice = f"Tried again for {tried_s:.0f} s. {advice}"
    text = text.strip() or "no details"
    sentence = text if text[-1] in ".!" else text + "."
    kind = PubSubUnavailableError if verdict.retryable else PubSubRejectedError
    return kind(what, resource, code, sentence, advice)


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long to wait before the nth retry: doubles up to a limit, with jitter."""

    first_s: float = 0.1
    factor: float = 2.0
    most_s: float = 10.0

    def wait_s(self, failures: int, chance: float) -> float:
        """Return the wait after `failures` failures (at least 1); `chance` is random in [0, 1).

        Half of the wait is fixed, so that clients do not hammer the server. The other half is
        random, so that clients that failed together do not retry together.
        """
        whole = min(self.first_s * self.factor ** min(failures - 1, 30), self.most_s)
        return whole * (0.5 + chance / 2)
