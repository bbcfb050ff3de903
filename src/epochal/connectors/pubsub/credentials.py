"""Who we are to Google: a service account by file, JSON or its parts, else the environment's own.

What a reader would get wrong: with an emulator nobody asks, and credentials are not even looked
for, so that tests and quick starts need none.
"""

from __future__ import annotations

import json
from typing import Any

from epochal.connectors.pubsub.pubsub_options import Access, emulator_host
from epochal.errors import OptionError

SCOPES = ("https://www.googleapis.com/auth/pubsub",)
TOKEN_URI = "https://oauth2.googleapis.com/token"


def find_credentials(access: Access) -> tuple[Any, str | None]:
    """google-auth's credentials and the project that comes with them; none for an emulator."""
    if emulator_host(access):
        return None, None
    from google.oauth2 import service_account

    ways = [access.credentials_file, access.credentials_json, access.private_key]
    if sum(way is not None for way in ways) > 1:
        raise OptionError(
            "pubsub: give one of credentialsFile, credentialsJson and privateKey: which account "
            "is meant would be a guess."
        )
    info = _account_info(access)
    if info is None:
        return _environments_own()
    try:
        found = service_account.Credentials.from_service_account_info(info, scopes=SCOPES)
    except ValueError as error:
        raise OptionError(f"pubsub: the service account's key cannot be used: {error}") from error
    return found, info.get("project_id")


def _account_info(access: Access) -> dict[str, Any] | None:
    if access.credentials_file is not None:
        try:
            with open(access.credentials_file, encoding="utf-8") as file:
                text = file.read()
        except OSError as error:
            raise OptionError(
                f"pubsub: credentialsFile {access.credentials_file} cannot be read ({error}). It "
                f"must be at this path on the driver and on every executor; credentialsJson "
                f"carries the key itself."
            ) from error
        return _parsed(text, "credentialsFile")
    if access.credentials_json is not None:
        return _parsed(access.credentials_json, "credentialsJson")
    if access.private_key is None:
        return None
    if access.client_email is None:
        raise OptionError("pubsub: privateKey needs clientEmail, the account it belongs to.")
    return {
        "type": "service_account",
        "client_email": access.client_email,
        "client_id": access.client_id,
        "private_key": access.private_key.replace("\\n", "\n"),
        "private_key_id": access.private_key_id,
        "project_id": access.project_id,
        "token_uri": TOKEN_URI,
    }


def _parsed(text: str, option: str) -> dict[str, Any]:
    # The text is a secret: an error must not show it.
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise OptionError(f"pubsub: {option} is not the JSON of a service account's key.")
    return found


def _environments_own() -> tuple[Any, str | None]:
    import google.auth
    from google.auth.exceptions import DefaultCredentialsError

    try:
        found, project = google.auth.default(scopes=SCOPES)
    except DefaultCredentialsError as error:
        raise OptionError(
            f"pubsub: no credentials: {error} Or give credentialsFile or credentialsJson, or "
            f"name an emulator with PUBSUB_EMULATOR_HOST."
        ) from error
    return found, project
