"""The error protocol: what each gRPC status means for a query. Pure.

One table decides what is tried again and what ends the query, for streams and single calls alike;
`docs/pubsub.md` shows it. What a reader would get wrong: nothing is tried for ever. Who retries
gives up after `retryTimeout` without a success, with the last status as the cause. And gRPC reports
credentials that cannot be renewed as UNAVAILABLE, which waiting does not cure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from epochal.errors import PubSubFailedError, PubSubRejectedError, PubSubUnavailableError


@dataclass(frozen=True, slots=True)
class Verdict:
    """What to do about a status."""

    retryable: bool
    advice: str


_GONE = "It does not exist, or was deleted. Create it, or correct the id or the project."
TABLE: Mapping[str, Verdict] = {
    "OK": Verdict(True, "The server ended the stream: connect again."),
    "UNAVAILABLE": Verdict(True, "The service cannot be reached: check the network and endpoint."),
    "DEADLINE_EXCEEDED": Verdict(True, "No answer in time: check the network and endpoint."),
    "INTERNAL": Verdict(True, "The service failed; if it goes on, see Google's status page."),
    "UNKNOWN": Verdict(True, "The service failed; if it goes on, see Google's status page."),
    "ABORTED": Verdict(True, "The service gave up the call; it may be made again."),
    "RESOURCE_EXHAUSTED": Verdict(True, "A quota is used up: ask for less, or for more quota."),
    "NOT_FOUND": Verdict(False, _GONE),
    "PERMISSION_DENIED": Verdict(
        False,
        "Grant the account roles/pubsub.subscriber to read, roles/pubsub.publisher to write, "
        "roles/pubsub.editor to create or seek.",
    ),
    "UNAUTHENTICATED": Verdict(False, "The credentials are missing, wrong or expired: renew them."),
    "FAILED_PRECONDITION": Verdict(
        False, "The resource does not allow this now; a detached subscription must be made anew."
    ),
    "INVALID_ARGUMENT": Verdict(False, "The request breaks Pub/Sub's rules: see its text."),
    "OUT_OF_RANGE": Verdict(False, "The request breaks Pub/Sub's rules: see its text."),
    "ALREADY_EXISTS": Verdict(False, "Choose another id, or use the one that exists."),
    "UNIMPLEMENTED": Verdict(False, "The server does not know the call: check the endpoint."),
    "CANCELLED": Verdict(False, "The client ended the call."),
    "DATA_LOSS": Verdict(False, "The service lost data: see Google's status page."),
}
_STALE = Verdict(False, "The credentials cannot be renewed: log in again, or give a valid key.")
_PLUGIN = "getting metadata from plugin failed"
_HOPELESS = (
    "invalid_grant",
    "invalid_client",
    "unauthorized_client",
    "disabled",
    "reauth",
    "expired",
)


def judge(code: str, text: str = "") -> Verdict:
    """What a status means; `text` is what the server or gRPC said."""
    lowered = text.lower()
    if code == "UNAVAILABLE" and _PLUGIN in lowered and any(w in lowered for w in _HOPELESS):
        return _STALE
    return TABLE.get(code, Verdict(False, "An unexpected status."))


def failure(
    what: str, resource: str, code: str, text: str, *, tried_s: float = 0
) -> PubSubFailedError:
    """The error that a status becomes once it is not, or no longer, retried."""
    verdict = judge(code, text)
    advice = verdict.advice
    if tried_s:
        advice = f"Tried again for {tried_s:.0f} s. {advice}"
    text = text.strip() or "no details"
    said = text if text[-1] in ".!" else text + "."
    kind = PubSubUnavailableError if verdict.retryable else PubSubRejectedError
    return kind(what, resource, code, said, advice)


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long to wait before the nth try: doubling, with full jitter, up to a limit."""

    first_s: float = 0.1
    factor: float = 2.0
    most_s: float = 10.0

    def wait_s(self, failures: int, chance: float) -> float:
        """`failures` so far, at least 1; `chance` is random in [0, 1).

        Half of the time is certain, so that a crowd neither hammers nor stays together.
        """
        whole = min(self.first_s * self.factor ** min(failures - 1, 30), self.most_s)
        return whole * (0.5 + chance / 2)
