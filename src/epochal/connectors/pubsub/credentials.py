"""Finds the Google credentials to use.

They are a service account, given as a file, as JSON or as separate fields. Without one, Google's
application default credentials are used.

Note: with an emulator, credentials are never looked up, so tests and quick starts need none.
"""

from __future__ import annotations

import json
from typing import Any

from epochal.connectors.pubsub.pubsub_access import EMULATOR, Access, emulator_host
from epochal.errors import OptionError

SCOPES = ("https://www.googleapis.com/auth/pubsub",)
TOKEN_URI = "https://oauth2.googleapis.com/token"


def find_credentials(access: Access) -> tuple[Any, str | None]:
    """Return google-auth's credentials and the project they name; (None, None) for an emulator."""
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
        found = service_account.Credentials.from_service_account_info(info, scopes=SCOPES)
    except ValueError as error:
        raise OptionError(
            f"pubsub: Google's library rejects the service account's key: {error} Give the key "
            f"file as Google issued it."
        ) from error
    return found, info.get("project_id")


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
        return _parsed(text, "credentialsFile")
    if access.credentials_json is not None:
        return _parsed(access.credentials_json, "credentialsJson")
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


def _parsed(text: str, option: str) -> dict[str, Any]:
    # The text is a secret, so the error must not quote it.
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise OptionError(
            f"pubsub: {option} is not the JSON of a service account's key. Give the key file as "
            f"Google issued it."
        )
    return found


def _default_credentials() -> tuple[Any, str | None]:
    import google.auth
    from google.auth.exceptions import DefaultCredentialsError

    try:
        found, project = google.auth.default(scopes=SCOPES)
    except DefaultCredentialsError as error:
        raise OptionError(
            f"pubsub: no credentials were found: {error} Give credentialsFile or credentialsJson. "
            f"To use an emulator, give emulatorHost, or set {EMULATOR} before "
            f"epochal.register(spark): Spark's own processes do not see it later."
        ) from error
    return found, project
