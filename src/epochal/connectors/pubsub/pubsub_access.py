"""How to reach Pub/Sub: the project, the endpoint or emulator, and the credentials to use."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from epochal.errors import OptionError

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


SCOPES = ("https://www.googleapis.com/auth/pubsub",)
TOKEN_URI = "https://oauth2.googleapis.com/token"


def find_credentials(access: Access) -> tuple[Any, str | None]:
    """Return google-auth's credentials and the project they name; (None, None) for an emulator.

    They are a service account, given as a file, as JSON or as separate fields. Without one,
    Google's application default credentials are used. With an emulator nothing is looked up, so
    tests and quick starts need no credentials.
    """
    if emulator_host(access):
        return None, None
    from google.oauth2 import service_account

    ways = [access.credentials_file, access.credentials_json, access.private_key]
    if sum(way is not None for way in ways) > 1:
        raise OptionError(
            "pubsub: more than one of credentialsFile, credentialsJson and privateKey is set, so "
            "it is unclear which account to use: give one of them."
        )
    info = _account_info(access)
    if info is None:
        return _default_credentials()
    try:
        credentials = service_account.Credentials.from_service_account_info(info, scopes=SCOPES)
    except ValueError as error:
        raise OptionError(
            f"pubsub: Google's library rejects the service account's key: {error} Give the key "
            f"file as Google issued it."
        ) from error
    return credentials, info.get("project_id")


def _account_info(access: Access) -> dict[str, Any] | None:
    if access.credentials_file is not None:
        try:
            with open(access.credentials_file, encoding="utf-8") as file:
                text = file.read()
        except OSError as error:
            raise OptionError(
                f"pubsub: credentialsFile {access.credentials_file} cannot be read ({error}). The "
                f"file must exist at this path on the driver and on every executor. Or pass its "
                f"content as credentialsJson."
            ) from error
        return _parse_json(text, "credentialsFile")
    if access.credentials_json is not None:
        return _parse_json(access.credentials_json, "credentialsJson")
    if access.private_key is None:
        return None
    if access.client_email is None:
        raise OptionError(
            "pubsub: privateKey needs clientEmail: set it to the e-mail address of the account "
            "that owns the key."
        )
    return {
        "type": "service_account",
        "client_email": access.client_email,
        "client_id": access.client_id,
        "private_key": access.private_key.replace("\\n", "\n"),
        "private_key_id": access.private_key_id,
        "project_id": access.project_id,
        "token_uri": TOKEN_URI,
    }


def _parse_json(text: str, option: str) -> dict[str, Any]:
    # The text is a secret, so the error must not quote it.
    try:
        info = json.loads(text)
    except ValueError:
        info = None
    if not isinstance(info, dict):
        raise OptionError(
            f"pubsub: {option} is not the JSON of a service account's key. Give the key file as "
            f"Google issued it."
        )
    return info


def _default_credentials() -> tuple[Any, str | None]:
    import google.auth
    from google.auth.exceptions import DefaultCredentialsError

    try:
        credentials, project = google.auth.default(scopes=SCOPES)
    except DefaultCredentialsError as error:
        raise OptionError(
            f"pubsub: no credentials were found: {error} Give credentialsFile or credentialsJson. "
            f"To use an emulator, give emulatorHost, or set {EMULATOR} before "
            f"epochal.register(spark): Spark's own processes do not see it later."
        ) from error
    return credentials, project
