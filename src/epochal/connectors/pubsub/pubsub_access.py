"""How to reach Pub/Sub: the project, the endpoint or emulator, and the credentials to use."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from datetime import timedelta

EMULATOR = "PUBSUB_EMULATOR_HOST"
ROUTING_HEADER = "x-goog-request-params"
"""The header by which Google routes a call to the region and shard of its resource."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """The options that the source and the sink share."""

    project_id: str | None = None
    emulator_host: str | None = None
    """host:port of an emulator or of the embedded server. Default: $PUBSUB_EMULATOR_HOST."""
    endpoint: str = "pubsub.googleapis.com:443"
    credentials_file: str | None = None
    credentials_json: str | None = field(default=None, repr=False)
    client_email: str | None = None
    client_id: str | None = None
    private_key: str | None = field(default=None, repr=False)
    private_key_id: str | None = None
    request_timeout: timedelta = timedelta(seconds=20)
    """The deadline of every unary call."""
    retry_timeout: timedelta | None = timedelta(seconds=30)
    """How long to keep retrying without a success before giving up; None for ever."""


def emulator_host(access: Access) -> str | None:
    """The emulator's host:port from the option or the environment; None to use Google's service."""
    return access.emulator_host or os.environ.get(EMULATOR) or None
