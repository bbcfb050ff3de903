"""Waits at the start of a query for brokers that do not answer yet.

Only silence is waited for. A rejected password, an unknown topic or a wrong setting would be the
same a minute later, so those errors are raised at once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from epochal.clock import Clock
from epochal.errors import KafkaUnavailableError

logger = logging.getLogger(__name__)

T = TypeVar("T")

RETRY_SECONDS = 1.0
LOG_SECONDS = 10.0


def await_brokers(ask: Callable[[], T], *, seconds: float, clock: Clock) -> T:
    """The answer to the first request; it is repeated for up to `seconds` while nobody answers."""
    began = clock.monotonic()
    logged: float | None = None
    while True:
        try:
            answer = ask()
            break
        except KafkaUnavailableError as error:
            now = clock.monotonic()
            left = began + seconds - now
            if left <= 0:
                raise
            if logged is None or now - logged >= LOG_SECONDS:
                logged = now
                logger.warning("%s The query starts when they answer within %.0f s", error, left)
            clock.sleep(min(RETRY_SECONDS, left))
    if logged is not None:
        logger.info("the brokers answer after %.0f s", clock.monotonic() - began)
    return answer
