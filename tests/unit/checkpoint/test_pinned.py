"""Pinned settings: the checkpoint overrides the session, and a missing key has its old meaning."""

from __future__ import annotations

import pytest

from epochal.checkpoint.entries import CommitEntry, OffsetEntry, SinkMetadata
from epochal.checkpoint.restart import (
    LEGACY_DEFAULTS,
    NEW_QUERY_DEFAULTS,
    commit_log_version,
    conf_in_force,
    conf_of_new_query,
    offset_log_version,
)
from epochal.errors import OptionError

ENCODING = "spark.sql.streaming.stateStore.encodingFormat"
CHECKSUM = "spark.sql.streaming.stateStore.rowChecksum.enabled"
MERGES = "spark.sql.streaming.stateStore.rocksdb.mergeOperatorVersion"
PROTOBUF = "spark.sql.function.protobufExtensions.enabled"
PROVIDER = "spark.sql.streaming.stateStore.providerClass"
PARTITIONS = "spark.sql.shuffle.partitions"
OFFSETS = "spark.sql.streaming.offsetLog.formatVersion"
EVOLUTION = "spark.sql.streaming.queryEvolution.enableSourceEvolution"
STATE = "spark.sql.streaming.stateStore.checkpointFormatVersion"

V1, V2 = OffsetEntry(1, ("0",)), OffsetEntry(2, {"0": "0"})


def test_a_new_query_pins_defaults_and_what_the_session_sets() -> None:
    conf = conf_of_new_query({})
    assert (conf[ENCODING], conf[CHECKSUM], conf[MERGES]) == ("unsaferow", "false", "2")
    assert len(conf) == 17
    asked = conf_of_new_query({ENCODING: "avro", CHECKSUM: "true", MERGES: "1", "other": "x"})
    assert (asked[ENCODING], asked[CHECKSUM], asked[MERGES]) == ("avro", "true", "1")
    assert "other" not in asked


def test_the_number_of_state_partitions_is_pinned_under_its_old_name() -> None:
    internal = "spark.sql.streaming.internal.stateStore.partitions"
    assert conf_of_new_query({PARTITIONS: "7"})[PARTITIONS] == "7"
    assert conf_of_new_query({PARTITIONS: "7", internal: "9"})[PARTITIONS] == "9"


@pytest.mark.parametrize(
    ("key", "session", "meaning"),
    [
        (ENCODING, "avro", "unsaferow"),
        (CHECKSUM, "true", "false"),
        (MERGES, "2", "1"),
        (PROTOBUF, "true", "false"),
        (EVOLUTION, "true", "false"),
    ],
)
def test_a_key_the_checkpoint_lacks_means_what_it_meant_before_it_existed(
    key: str, session: str, meaning: str
) -> None:
    assert conf_in_force({}, {key: session})[key] == meaning


@pytest.mark.parametrize("key", sorted(NEW_QUERY_DEFAULTS))
def test_what_the_checkpoint_pins_wins(key: str) -> None:
    assert conf_in_force({key: "pinned"}, {key: "session"})[key] == "pinned"


def test_what_has_no_old_meaning_stays_as_the_session_has_it() -> None:
    assert set(NEW_QUERY_DEFAULTS) - set(LEGACY_DEFAULTS) == {
        PROVIDER,
        PARTITIONS,
        "spark.sql.streaming.stateStore.rocksdb.formatVersion",
    }
    assert conf_in_force({}, {PROVIDER: "mine", PARTITIONS: "3"})[PROVIDER] == "mine"
    assert conf_in_force({}, {PARTITIONS: "3"})[PARTITIONS] == "3"


def test_a_new_query_writes_offsets_in_the_version_asked_for() -> None:
    assert offset_log_version(None, {}) == 1
    assert offset_log_version(None, {OFFSETS: "2"}) == 2
    assert offset_log_version(None, {EVOLUTION: "true"}) == 2


def test_an_offset_log_keeps_its_version() -> None:
    assert offset_log_version(V1, {OFFSETS: "2"}) == 1
    assert offset_log_version(V2, {OFFSETS: "1"}) == 2
    assert offset_log_version(V2, {EVOLUTION: "true"}) == 2


def test_named_sources_cannot_be_turned_on_over_positional_offsets() -> None:
    with pytest.raises(OptionError, match=r"CANNOT_ENABLE_ON_EXISTING_CHECKPOINT.*version 1"):
        offset_log_version(V1, {EVOLUTION: "true"})


def test_a_commit_log_s_version_follows_the_state_format_and_is_never_3_by_setting() -> None:
    assert commit_log_version(None, {}) == 1
    assert commit_log_version(None, {STATE: "2"}) == 2
    assert commit_log_version(None, {STATE: "3"}) == 2


def test_a_commit_log_keeps_its_version() -> None:
    assert commit_log_version(CommitEntry(1), {STATE: "2"}) == 1
    assert commit_log_version(CommitEntry(2), {STATE: "1"}) == 2
    named = CommitEntry(3, 0, None, {"a": SinkMetadata("a", "-", "p", "DSv2")})
    assert commit_log_version(named, {}) == 3
