"""Decides which settings a query on a checkpoint has, and whether we can go on from there. Pure.

The settings that a checkpoint pins govern its query, whoever runs it. Some of them describe state
that only Spark can write. They are refused before anything is written, with a way out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from epochal.checkpoint.entries import CommitEntry, OffsetEntry
from epochal.checkpoint.pinned import (
    HDFS_PROVIDER_CLASS,
    PROVIDER,
    STATE_FORMAT,
    conf_in_force,
    conf_of_new_query,
)
from epochal.errors import OptionError

AGGREGATION_FORMAT = "spark.sql.streaming.aggregation.stateFormatVersion"
JOIN_FORMAT = "spark.sql.streaming.join.stateFormatVersion"
ENCODING = "spark.sql.streaming.stateStore.encodingFormat"
ROW_CHECKSUMS = "spark.sql.streaming.stateStore.rowChecksum.enabled"

PROVIDERS = (HDFS_PROVIDER_CLASS,)
"""The classes of state store providers whose files we write."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a checkpoint says before a query starts on it."""

    url: str
    newest: OffsetEntry | None
    """None if it is new."""
    commit: CommitEntry | None = None


def settle_conf(found: Found, session: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of a query: the checkpoint's, or for a new one the session's."""
    if found.newest is None:
        return conf_of_new_query(session)
    return conf_in_force(found.newest.conf, session)


def check_conf(found: Found, conf: Mapping[str, str], session: Mapping[str, str]) -> None:
    """Raise OptionError if these settings describe state that we cannot go on from."""
    new = found.newest is None
    if found.newest is not None and found.newest.version > 1:
        names = ", ".join(map(str, found.newest.by_source))
        raise OptionError(
            f"{found.url} has an offset log of version {found.newest.version}, with named sources "
            f"({names}), and the query's sources have no names here. Go on with Spark, or use a "
            f"new checkpointLocation."
        )
    formats = int(session.get(STATE_FORMAT, "1")) if new else 1
    if found.commit is not None and found.commit.version > 1:
        formats = 2
    if formats > 1:
        _refuse(found, STATE_FORMAT, str(formats), "1")
    for key, supported in (
        (PROVIDER, PROVIDERS),
        (AGGREGATION_FORMAT, ("2",)),
        (JOIN_FORMAT, ("2",)),
        (ENCODING, ("unsaferow",)),
        (ROW_CHECKSUMS, ("false",)),
    ):
        if conf[key].lower() not in [each.lower() for each in supported]:
            _refuse(found, key, conf[key], supported[0])


def _refuse(found: Found, key: str, value: str, supported: str) -> None:
    if found.newest is None:
        raise OptionError(
            f"{key} is {value} in this session, and a new query would lay out its state "
            f"accordingly, which only Spark can do. Set it to {supported} before the start."
        )
    convert = (
        "Convert the state with `epochal state convert`"
        if key == PROVIDER
        else "Go on with Spark, or use a new checkpointLocation"
    )
    raise OptionError(
        f"{found.url} was written with {key} = {value}, and only {supported} can be continued "
        f"here. Nothing was changed. {convert}."
    )
