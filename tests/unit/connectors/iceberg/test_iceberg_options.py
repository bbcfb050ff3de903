"""Options of the Iceberg sink, and errors without passwords."""

from __future__ import annotations

import pytest

from epochal.connectors.iceberg.iceberg_options import IcebergSinkOptions
from epochal.errors import OptionError
from epochal.options import read_options, without_secrets


def test_settings_of_the_catalog_are_passed_on_without_their_prefix() -> None:
    given = {"path": "db.t", "catalog.name": "c", "catalog.type": "rest", "catalog.s3.region": "eu"}
    options = read_options(IcebergSinkOptions, given, of="iceberg")
    assert (options.table, options.catalog_name) == ("db.t", "c")
    assert options.catalog_settings == {"type": "rest", "s3.region": "eu"}


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"table": "t"}, "named with its namespace"),
        ({"table": "db."}, "named with its namespace"),
        ({"expireSnapshotsKeep": "0"}, "expireSnapshotsKeep must be positive, not 0"),
        ({"compactMinFiles": "1"}, "compactMinFiles must be at least 2, not 1"),
    ],
)
def test_options_that_cannot_work_are_refused(given: dict[str, str], reason: str) -> None:
    with pytest.raises(OptionError, match=reason):
        read_options(IcebergSinkOptions, {"table": "db.t", **given}, of="iceberg")


def test_errors_show_no_passwords_and_no_tokens() -> None:
    settings = {"token": "abc123", "s3.secret-access-key": "xyz789", "uri": "http://host"}
    text = "http://host refused abc123, xyz789 and postgresql://user:hunter2@db/x"
    found = without_secrets(text, settings)
    assert found == "http://host refused ***, *** and postgresql://user:***@db/x"
