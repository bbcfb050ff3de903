"""Options of the source and the sink, the table of statuses, calls and waits between retries."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from google.api_core.gapic_v1.routing_header import to_grpc_metadata

from epochal.connectors.pubsub.connection import Connection, Retry, routing
from epochal.connectors.pubsub.continuous_pubsub import row_schema
from epochal.connectors.pubsub.pubsub_options import (
    Access,
    Delivery,
    SourceOptions,
    find_credentials,
    settle_options,
    sink_options,
    source_options,
)
from epochal.connectors.pubsub.statuses import FATAL, RETRIED, Backoff, failure, judge
from epochal.errors import OptionError, PubSubRejectedError, PubSubUnavailableError

BASE = {"subscriptionId": "sub", "projectId": "p"}


def test_databricks_names_of_options_are_aliases() -> None:
    ours = source_options({**BASE, "numPartitions": "3", "delivery": "exactly-once"})
    theirs = source_options({**BASE, "NUMFETCHPARTITIONS": "3", "delivery": "Exactly-Once"})
    assert ours == theirs
    assert (ours.num_partitions, ours.delivery) == (3, Delivery.EXACTLY_ONCE)
    sink = sink_options({"topicId": "top", "projectId": "p", "batchSize": "7", "lingerMs": "5"})
    assert (sink.batch_size, sink.linger_ms, sink.topic) == (7, 5, "projects/p/topics/top")


def test_full_names_are_taken_as_they_are() -> None:
    found = source_options({"subscriptionId": "projects/other/subscriptions/sub"})
    assert found.subscription == "projects/other/subscriptions/sub"


def test_conf_is_a_default_under_options() -> None:
    conf = {"spark.pubsub.numFetchPartitions": "5", "spark.pubsub.lingerMs": "9", "spark.x": "y"}
    assert source_options(BASE, conf).num_partitions == 5
    assert source_options({**BASE, "numPartitions": "2"}, conf).num_partitions == 2
    assert sink_options({"topicId": "top", "projectId": "p"}, conf).linger_ms == 9
    with pytest.raises(OptionError, match="Did you mean lingerMs"):
        source_options(BASE, {"spark.pubsub.lingerMx": "9"})


def test_the_project_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "env")
    monkeypatch.setenv("PUBSUB_EMULATOR_HOST", "host:1")
    found = settle_options(source_options({"subscriptionId": "sub", "topicId": "top"}))
    assert found.subscription_id == "projects/env/subscriptions/sub"
    assert found.topic_id == "projects/env/topics/top"
    assert found.emulator_host == "host:1"
    monkeypatch.delenv("GOOGLE_CLOUD_PROJECT")
    with pytest.raises(OptionError, match="projectId must be given"):
        source_options({"subscriptionId": "sub"}).subscription  # noqa: B018


WRONG: list[tuple[dict[str, str], str]] = [
    ({"subscriptionId": "a/b"}, "neither an id nor a full name"),
    ({"subscriptionId": "1x"}, "not a valid id in subscriptions"),
    ({**BASE, "ackDeadline": "5s"}, "10 to 600 seconds"),
    ({**BASE, "numPartitions": "0"}, "1 or more"),
    ({**BASE, "seekToTimestamp": "1", "seekToSnapshot": "s"}, "not both"),
    ({**BASE, "seekToTimestamp": "soon"}, "ISO 8601"),
    ({**BASE, "createSubscription": "true"}, "needs topicId"),
    ({**BASE, "maxRecordsPerFetsch": "1"}, "Did you mean maxRecordsPerFetch"),
]


@pytest.mark.parametrize(("given", "expected"), WRONG, ids=[expected for _, expected in WRONG])
def test_wrong_options_are_reported(given: dict[str, str], expected: str) -> None:
    with pytest.raises(OptionError, match=expected):
        use(given)


def use(given: dict[str, str]) -> Any:
    found = source_options({"projectId": "p", **given})
    return found.subscription, found.seek_target


def test_a_timestamp_is_milliseconds_or_iso_8601() -> None:
    at = datetime(2026, 5, 1, 12, tzinfo=UTC)
    for text in ("2026-05-01T12:00:00Z", "2026-05-01T12:00:00", "1777636800000"):
        assert source_options({**BASE, "seekToTimestamp": text}).seek_target == at
    named = source_options({**BASE, "seekToSnapshot": "snap"})
    assert named.seek_target == "projects/p/snapshots/snap"


def test_the_sinks_limits_are_pubsubs() -> None:
    topic = {"topicId": "top", "projectId": "p"}
    for name, text in (("batchSize", "1001"), ("maxBatchBytes", "10000001"), ("lingerMs", "-1")):
        with pytest.raises(OptionError, match=name):
            sink_options({**topic, name: text})


def test_secrets_do_not_show() -> None:
    access = SourceOptions(subscription_id="sub", credentials_json="s3cret", private_key="k3y")
    assert "s3cret" not in repr(access)
    assert "k3y" not in repr(access)
    with pytest.raises(OptionError, match="not the JSON of a service account") as raised:
        find_credentials(Access(credentials_json="s3cret"))
    assert "s3cret" not in str(raised.value)


def test_ambiguous_or_incomplete_credentials_are_refused() -> None:
    with pytest.raises(OptionError, match="give one of"):
        find_credentials(Access(credentials_json="{}", private_key="x"))
    with pytest.raises(OptionError, match="needs clientEmail"):
        find_credentials(Access(private_key="x"))
    with pytest.raises(OptionError, match="cannot be read"):
        find_credentials(Access(credentials_file="/nowhere/key.json"))
    assert find_credentials(Access(emulator_host="h:1", credentials_json="bad")) == (None, None)


def test_every_status_has_a_verdict_and_advice() -> None:
    import grpc

    assert {code.name for code in grpc.StatusCode} == {*RETRIED, *FATAL}
    assert set(RETRIED) == {
        "OK",
        "UNAVAILABLE",
        "DEADLINE_EXCEEDED",
        "INTERNAL",
        "UNKNOWN",
        "ABORTED",
        "RESOURCE_EXHAUSTED",
    }


def test_credentials_that_cannot_be_renewed_are_not_retried() -> None:
    text = "Getting metadata from plugin failed with error: ('invalid_grant: Bad Request', {})"
    assert not judge("UNAVAILABLE", text).retryable
    assert judge("UNAVAILABLE", "Getting metadata from plugin failed: timed out").retryable


def test_failures_name_the_resource_and_what_to_do() -> None:
    gone = failure("reading", "projects/p/subscriptions/s", "NOT_FOUND", "Resource not found")
    assert isinstance(gone, PubSubRejectedError)
    assert str(gone) == (
        "Pub/Sub: reading projects/p/subscriptions/s failed: NOT_FOUND: Resource not found. It "
        "does not exist, or was deleted. Create it, or correct the id or the project."
    )
    away = failure("publishing to", "t", "UNAVAILABLE", "", tried_s=30)
    assert isinstance(away, PubSubUnavailableError)
    assert "Tried again for 30 s" in str(away)


def test_waits_double_with_jitter_up_to_a_limit() -> None:
    backoff = Backoff(first_s=1.0, factor=2.0, most_s=5.0)
    assert [backoff.wait_s(n, 1.0) for n in (1, 2, 3, 4, 100)] == [1.0, 2.0, 4.0, 5.0, 5.0]
    assert [backoff.wait_s(n, 0.0) for n in (1, 2, 3)] == [0.5, 1.0, 2.0]


def test_retries_end_before_the_retry_timeout() -> None:
    now = iter([0.0, 1.0, 2.0, 3.0, 4.0, 5.0])
    retry = Retry(Backoff(0.0001, 2.0, 0.0001), chance=lambda: 0.5, monotonic=lambda: next(now))
    access = Access(emulator_host="127.0.0.1:1", retry_timeout=timedelta(seconds=3))
    connection = Connection(access, retry=retry)
    waits: list[Any] = []
    for failures in range(1, 4):
        connection.wait_after(("ABORTED", "x"), failures, 0.0, what="trying", resource="r")
        waits.append(failures)
    with pytest.raises(PubSubUnavailableError, match="Tried again for 3 s"):
        connection.wait_after(("ABORTED", "x"), 4, 0.0, what="trying", resource="r")
    assert waits == [1, 2, 3]
    connection.close()


@pytest.mark.parametrize(
    ("text", "size"),
    [("10m", 10 << 20), ("10 MB", 10 << 20), ("1g", 1 << 30), ("512K", 512 << 10), ("77", 77)],
)
def test_sizes_may_have_sparks_units(text: str, size: int) -> None:
    given = {"subscriptionId": "sub", "projectId": "p", "maxBytesPerTrigger": text}
    assert source_options(given).max_bytes_per_trigger == size


@pytest.mark.parametrize("text", ["10x", "m", "1.5m", "-1", ""])
def test_what_is_no_size_is_refused(text: str) -> None:
    given = {"subscriptionId": "sub", "projectId": "p", "maxBytesPerTrigger": text}
    with pytest.raises(OptionError, match="pubsub: maxBytesPerTrigger must be a number of bytes"):
        source_options(given)


def test_databricks_columns_exclude_columns_that_databricks_does_not_have() -> None:
    given = {"subscriptionId": "sub", "projectId": "p", "columnNames": "databricks"}
    with pytest.raises(OptionError, match="cannot be combined with parse or includeAckId"):
        source_options({**given, "includeAckId": "true"})
    with pytest.raises(OptionError, match="In a continuous query, remove it"):
        row_schema(source_options(given), None)


def test_missing_credentials_say_when_the_emulators_address_must_be_known(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("PUBSUB_EMULATOR_HOST", raising=False)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "nowhere.json"))
    with pytest.raises(OptionError, match=r"PUBSUB_EMULATOR_HOST before epochal\.register\(spark"):
        find_credentials(Access(project_id="p"))


@pytest.mark.parametrize(
    ("method", "field", "resource"),
    [
        ("Publish", "topic", "projects/p/topics/t%+~"),
        ("StreamingPull", "subscription", "projects/p/subscriptions/s"),
        ("Acknowledge", "subscription", "projects/p:x/subscriptions/s"),
        ("CreateSubscription", "name", "projects/p/subscriptions/s"),
        ("DeleteSnapshot", "snapshot", "projects/p/snapshots/s"),
    ],
)
def test_the_routing_header_is_googles(method: str, field: str, resource: str) -> None:
    assert routing(method, resource) == (to_grpc_metadata([(field, resource)]),)
