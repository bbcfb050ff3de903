"""What a Pub/Sub server owes Google's official client, over every server there is.

The embedded server always; `pstest`, Google's own server for tests, in the full run, because it is
built with Go; Google's emulator too where PUBSUB_EMULATOR_HOST names one. Where one of Google's two
is known to do otherwise, QUIRKS says what it does, and the test must fail there.
"""

from __future__ import annotations

import itertools
import os
import queue
import random
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import grpc
import pytest
from google.api_core import exceptions
from google.cloud import pubsub_v1
from google.cloud.pubsub_v1.subscriber.exceptions import AcknowledgeError, AcknowledgeStatus
from google.cloud.pubsub_v1.types import PublisherOptions
from google.pubsub_v1 import PublisherClient as LowLevelPublisher
from tests.rigs.pstest import running_pstest

from epochal.testing.pubsub import running_server

EMULATOR = os.environ.get("PUBSUB_EMULATOR_HOST", "")
SERVERS = ["embedded", "pstest", *(["emulator"] if EMULATOR else [])]
PROJECT = "projects/contract"

EMULATOR_QUIRKS = {
    "test_a_filter_lets_through_only_what_it_describes": "accepts filters and applies none",
    "test_what_is_no_filter_is_refused": "accepts any text as a filter",
    "test_a_stream_gets_no_more_than_it_allows": "sends 100 messages where 10 are allowed",
    "test_exactly_once_confirms_on_the_stream": "keeps the flag and confirms nothing",
    "test_a_request_above_ten_megabytes_is_refused": "hangs until the client's deadline",
    "test_a_cancelled_stream_does_not_swallow_what_is_given_back": (
        "a stream ended by cancel goes on swallowing redeliveries for 10 s and more"
    ),
    "test_refusals_use_googles_words": "has words of its own: Topic not found",
}


PSTEST_QUIRKS = {
    "test_a_message_that_fails_too_often_goes_to_the_dead_letters": (
        "adds no attributes that name the source of a dead letter"
    ),
    "test_seeking_to_a_time_replays_and_purges": "panics on a seek to before an acknowledgement",
    "test_seeking_to_a_snapshot_brings_back_what_was_unacknowledged": "has no snapshots",
    "test_a_stream_gets_no_more_than_it_allows": "has no flow control",
    "test_exactly_once_confirms_on_the_stream": "confirms nothing",
    "test_exactly_once_refuses_the_acknowledgement_of_a_lease_that_ended": "refuses nothing",
    "test_a_stream_ends_when_its_subscription_is_deleted": "leaves the stream open and silent",
    "test_a_message_of_nine_megabytes_passes": "accepts at most 4 MB in a request",
    "test_a_request_above_ten_megabytes_is_refused": "accepts at most 4 MB, with another status",
    "test_what_cannot_be_is_an_invalid_argument": "accepts bad names, empty messages and more",
    "test_refusals_use_googles_words": "has words of its own",
    "test_a_subscription_is_described_with_its_defaults_and_updated_by_mask": (
        "describes a subscription without the defaults"
    ),
}
NOT_RUN = {("pstest", "test_a_message_of_nine_megabytes_passes")}
"""Google's client would retry in the background for minutes, into the tests that follow."""

QUIRKS = {"emulator": EMULATOR_QUIRKS, "pstest": PSTEST_QUIRKS}


@dataclass(frozen=True, slots=True)
class Peer:
    """A server and the official clients of it."""

    name: str
    address: str
    publisher: Any
    ordered_publisher: Any
    subscriber: Any

    def topic(self) -> str:
        name = f"{PROJECT}/topics/t-{uuid.uuid4().hex}"
        self.publisher.create_topic(name=name)
        return name

    def subscription(self, topic: str, **settings: Any) -> str:
        name = f"{PROJECT}/subscriptions/s-{uuid.uuid4().hex}"
        request = {"name": name, "topic": topic, **settings}
        self.subscriber.create_subscription(request=request)
        return name

    def pair(self, **settings: Any) -> tuple[str, str]:
        """A topic and a subscription of it."""
        topic = self.topic()
        return topic, self.subscription(topic, **settings)

    def publish(self, topic: str, *bodies: str, **attributes: str) -> list[str]:
        futures = [self.publisher.publish(topic, b.encode(), **attributes) for b in bodies]
        return [future.result(timeout=20) for future in futures]

    def publish_raw(self, topic: str, messages: list[dict[str, bytes]]) -> Any:
        """As the low-level client does it: what the high-level one would never send too."""
        low_level: Any = LowLevelPublisher
        return low_level.publish(
            self.publisher, topic=topic, messages=messages, timeout=5, retry=None
        )

    def pull(self, subscription: str, count: int, *, seconds: float = 20) -> list[Any]:
        """Received messages, until there are `count` or time is up.

        A server that notices the end of the time before the client does answers with Cancelled.
        """
        found: list[Any] = []
        end = time.monotonic() + seconds
        while len(found) < count and (left := end - time.monotonic()) > 0:
            try:
                found += self.subscriber.pull(
                    subscription=subscription,
                    max_messages=count - len(found),
                    timeout=left,
                    retry=None,
                ).received_messages
            except (exceptions.DeadlineExceeded, exceptions.Cancelled, exceptions.RetryError):
                break
        return found

    def ack(self, subscription: str, received: list[Any]) -> None:
        ids = [each.ack_id for each in received]
        self.subscriber.acknowledge(subscription=subscription, ack_ids=ids)

    def deadline(self, subscription: str, received: list[Any], seconds: int) -> None:
        self.subscriber.modify_ack_deadline(
            subscription=subscription,
            ack_ids=[each.ack_id for each in received],
            ack_deadline_seconds=seconds,
        )

    def is_empty(self, subscription: str) -> bool:
        return self.pull(subscription, 1, seconds=0.7) == []


def routing(subscription: str) -> list[tuple[str, str]]:
    """Return the header that Google's clients send, where a test goes below them."""
    return [("x-goog-request-params", f"subscription={subscription}")]


@pytest.fixture(scope="module", params=SERVERS)
def _shared(request: pytest.FixtureRequest) -> Iterator[Peer | None]:
    """A server for the whole module, or None for `pstest`, which some tests make panic."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "emulator":
            yield from _connected("emulator", EMULATOR, patch)
        elif request.param == "embedded":
            with running_server("--require-routing") as server:
                yield from _connected("embedded", server.address, patch)
        else:
            yield None


def _connected(name: str, address: str, patch: pytest.MonkeyPatch) -> Iterator[Peer]:
    patch.setenv("PUBSUB_EMULATOR_HOST", address)
    ordering = PublisherOptions(enable_message_ordering=True)
    publisher = pubsub_v1.PublisherClient()
    ordered = pubsub_v1.PublisherClient(publisher_options=ordering)
    with pubsub_v1.SubscriberClient() as subscriber:
        yield Peer(name, address, publisher, ordered, subscriber)
    for client in (publisher, ordered):
        client.stop()
        client.transport.close()


@pytest.fixture
def peer(_shared: Peer | None, request: pytest.FixtureRequest) -> Iterator[Peer]:
    name = "pstest" if _shared is None else _shared.name
    quirk = QUIRKS.get(name, {}).get(request.node.originalname)
    if quirk:
        run = (name, request.node.originalname) not in NOT_RUN
        request.applymarker(pytest.mark.xfail(reason=quirk, strict=True, run=run))
    if _shared is not None:
        yield _shared
        return
    with pytest.MonkeyPatch.context() as patch, running_pstest() as address:
        yield from _connected("pstest", address, patch)


def bodies(received: list[Any]) -> list[str]:
    return [each.message.data.decode() for each in received]


class Stream:
    """A StreamingPull of the official low-level client, driven request by request."""

    def __init__(self, peer: Peer, subscription: str, **first: Any) -> None:
        self._requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        opening = {"subscription": subscription, "stream_ack_deadline_seconds": 10, **first}
        self.send(**opening)
        self._call = peer.subscriber.streaming_pull(
            requests=iter(self._requests.get, None), metadata=routing(subscription)
        )
        self.responses: queue.Queue[Any] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def send(self, **fields: Any) -> None:
        self._requests.put(pubsub_v1.types.StreamingPullRequest(**fields))

    def half_close(self) -> None:
        """End the requests; the server ends the rest, well before any lease does."""
        self._requests.put(None)
        self._reader.join(5)
        assert not self._reader.is_alive()

    def cancel(self) -> None:
        self._call.cancel()
        self._requests.put(None)
        self._reader.join(20)

    def take(self, count: int, *, seconds: float = 20) -> list[Any]:
        """Received messages, until there are `count` or time is up."""
        found: list[Any] = []
        end = time.monotonic() + seconds
        while len(found) < count and (left := end - time.monotonic()) > 0:
            try:
                response = self.responses.get(timeout=left)
            except queue.Empty:
                break
            if isinstance(response, Exception):
                raise response
            found += response.received_messages
        return found

    def until(self, wanted: Callable[[Any], bool]) -> Any:
        while not wanted(response := self.responses.get(timeout=20)):
            pass
        return response

    def _read(self) -> None:
        try:
            for response in self._call:
                self.responses.put(response)
        except exceptions.GoogleAPICallError as error:
            self.responses.put(error)


def test_what_is_published_is_pulled_and_once_acknowledged_gone(peer: Peer) -> None:
    topic, subscription = peer.pair()
    ids = peer.publish(topic, "a", "b", "c")
    received = peer.pull(subscription, 3)
    assert sorted(bodies(received)) == ["a", "b", "c"]
    assert sorted(each.message.message_id for each in received) == sorted(ids)
    assert len({each.ack_id for each in received}) == 3
    peer.ack(subscription, received)
    assert peer.is_empty(subscription)


def test_a_message_arrives_as_it_was_published(peer: Peer) -> None:
    topic, subscription = peer.pair()
    before = datetime.now(UTC) - timedelta(seconds=5)
    future = peer.ordered_publisher.publish(
        topic, b"\x00\xff" * 10, ordering_key="key", language="en", empty=""
    )
    (received,) = peer.pull(subscription, 1)
    message = received.message
    assert message.data == b"\x00\xff" * 10
    assert dict(message.attributes) == {"language": "en", "empty": ""}
    assert (message.ordering_key, message.message_id) == ("key", future.result(timeout=5))
    assert before < message.publish_time < before + timedelta(minutes=5)
    assert received.delivery_attempt == 0


def test_a_message_comes_again_after_its_deadline_and_not_before(peer: Peer) -> None:
    topic, subscription = peer.pair()
    peer.publish(topic, "a")
    first = peer.pull(subscription, 1)
    peer.deadline(subscription, first, 2)
    start = time.monotonic()
    assert bodies(peer.pull(subscription, 1)) == ["a"]
    assert time.monotonic() - start > 1


def test_keys_arrive_in_order_on_a_stream(peer: Peer) -> None:
    topic, subscription = peer.pair(enable_message_ordering=True)
    futures = [
        peer.ordered_publisher.publish(topic, f"{n}".encode(), ordering_key=key)
        for n in range(50)
        for key in "ab"
    ]
    for future in futures:
        future.result(timeout=20)
    got: dict[str, list[int]] = {"a": [], "b": []}
    all_there = threading.Event()

    def receive(message: Any) -> None:
        got[message.ordering_key].append(int(message.data))
        message.ack()
        if sum(map(len, got.values())) == 100:
            all_there.set()

    streaming = peer.subscriber.subscribe(subscription, callback=receive)
    assert all_there.wait(60)
    streaming.cancel()
    streaming.result(timeout=20)
    assert got == {"a": list(range(50)), "b": list(range(50))}


def test_a_key_given_back_comes_again_in_order(peer: Peer) -> None:
    topic, subscription = peer.pair(enable_message_ordering=True)
    for body in ("1", "2", "3"):
        peer.ordered_publisher.publish(topic, body.encode(), ordering_key="k").result(timeout=20)
    got: list[str] = []
    all_there = threading.Event()

    def receive(message: Any) -> None:
        got.append(message.data.decode())
        if len(got) == 1:
            message.nack()
            return
        message.ack()
        if got[-1] == "3":
            all_there.set()

    streaming = peer.subscriber.subscribe(subscription, callback=receive)
    assert all_there.wait(60)
    streaming.cancel()
    streaming.result(timeout=20)
    # What of the key had been sent before the first came back may show in between, never reordered.
    assert got[0] == "1"
    assert got[-3:] == ["1", "2", "3"]


def test_a_filter_lets_through_only_what_it_describes(peer: Peer) -> None:
    topic = peer.topic()
    subscription = peer.subscription(
        topic, filter='attributes.kind = "x" AND NOT hasPrefix(attributes.origin, "test")'
    )
    peer.publish(topic, "no kind")
    peer.publish(topic, "from a test", kind="x", origin="test-1")
    peer.publish(topic, "wanted", kind="x")
    assert bodies(peer.pull(subscription, 3, seconds=2)) == ["wanted"]


def test_a_message_that_fails_too_often_goes_to_the_dead_letters(peer: Peer) -> None:
    topic, grave = peer.topic(), peer.topic()
    graves = peer.subscription(grave)
    policy = {"dead_letter_topic": grave, "max_delivery_attempts": 5}
    subscription = peer.subscription(topic, dead_letter_policy=policy)
    peer.publish(topic, "a", kind="x")
    attempts = []
    for _ in range(5):
        received = peer.pull(subscription, 1)
        attempts += [each.delivery_attempt for each in received]
        peer.deadline(subscription, received, 0)
    (dead,) = peer.pull(graves, 1)
    assert attempts == [1, 2, 3, 4, 5]
    assert (dead.message.data, dead.message.attributes["kind"]) == (b"a", "x")
    assert dead.message.attributes["CloudPubSubDeadLetterSourceDeliveryCount"] == "5"
    assert peer.is_empty(subscription)


def test_seeking_to_a_time_replays_and_purges(peer: Peer) -> None:
    topic, subscription = peer.pair(retain_acked_messages=True)
    start = datetime.now(UTC) - timedelta(minutes=1)
    peer.publish(topic, "a", "b")
    peer.ack(subscription, peer.pull(subscription, 2))
    peer.subscriber.seek(request={"subscription": subscription, "time": start})
    assert sorted(bodies(peer.pull(subscription, 2))) == ["a", "b"]
    later = datetime.now(UTC) + timedelta(minutes=1)
    peer.publish(topic, "c")
    peer.subscriber.seek(request={"subscription": subscription, "time": later})
    assert peer.is_empty(subscription)


def test_seeking_to_a_snapshot_brings_back_what_was_unacknowledged(peer: Peer) -> None:
    topic, subscription = peer.pair()
    peer.publish(topic, "done")
    peer.ack(subscription, peer.pull(subscription, 1))
    peer.publish(topic, "left")
    snapshot = f"{PROJECT}/snapshots/n-{uuid.uuid4().hex}"
    made = peer.subscriber.create_snapshot(name=snapshot, subscription=subscription)
    assert (made.name, made.topic) == (snapshot, topic)
    peer.publish(topic, "since")
    peer.ack(subscription, peer.pull(subscription, 2))
    assert peer.is_empty(subscription)
    peer.subscriber.seek(request={"subscription": subscription, "snapshot": snapshot})
    assert sorted(bodies(peer.pull(subscription, 2))) == ["left", "since"]
    peer.subscriber.delete_snapshot(snapshot=snapshot)
    with pytest.raises(exceptions.NotFound):
        peer.subscriber.get_snapshot(snapshot=snapshot)


def test_a_stream_gets_no_more_than_it_allows(peer: Peer) -> None:
    topic, subscription = peer.pair()
    peer.publish(topic, *(f"{n}" for n in range(50)))
    stream = Stream(peer, subscription, max_outstanding_messages=10)
    first = stream.take(11, seconds=1)
    assert len(first) == 10
    stream.send(ack_ids=[each.ack_id for each in first[:4]])
    assert len(stream.take(5, seconds=1)) == 4
    stream.cancel()


def test_exactly_once_confirms_on_the_stream(peer: Peer) -> None:
    topic, subscription = peer.pair(enable_exactly_once_delivery=True)
    peer.publish(topic, "a")
    stream = Stream(peer, subscription)
    response = stream.until(lambda r: len(r.received_messages) == 1)
    assert response.subscription_properties.exactly_once_delivery_enabled
    (received,) = response.received_messages
    stream.send(modify_deadline_ack_ids=[received.ack_id], modify_deadline_seconds=[30])
    modified = stream.until(lambda r: r.modify_ack_deadline_confirmation.ack_ids)
    assert list(modified.modify_ack_deadline_confirmation.ack_ids) == [received.ack_id]
    stream.send(ack_ids=[received.ack_id])
    acked = stream.until(lambda r: r.acknowledge_confirmation.ack_ids)
    assert list(acked.acknowledge_confirmation.ack_ids) == [received.ack_id]
    stream.send(ack_ids=[received.ack_id])
    again = stream.until(lambda r: r.acknowledge_confirmation.invalid_ack_ids)
    assert list(again.acknowledge_confirmation.invalid_ack_ids) == [received.ack_id]
    stream.cancel()


def test_exactly_once_refuses_the_acknowledgement_of_a_lease_that_ended(peer: Peer) -> None:
    topic, subscription = peer.pair(enable_exactly_once_delivery=True)
    peer.publish(topic, "a")
    held: queue.SimpleQueue[Any] = queue.SimpleQueue()
    streaming = peer.subscriber.subscribe(subscription, callback=held.put)
    message = held.get(timeout=30)
    peer.subscriber.modify_ack_deadline(
        subscription=subscription, ack_ids=[message.ack_id], ack_deadline_seconds=0
    )
    again = held.get(timeout=30)
    with pytest.raises(AcknowledgeError) as refused:
        message.ack_with_response().result(timeout=30)
    assert refused.value.error_code == AcknowledgeStatus.INVALID_ACK_ID
    assert again.ack_with_response().result(timeout=30) == AcknowledgeStatus.SUCCESS
    streaming.cancel()
    streaming.result(timeout=20)


def test_a_stream_that_is_half_closed_after_giving_back_frees_its_messages(peer: Peer) -> None:
    topic, subscription = peer.pair()
    peer.publish(topic, "a")
    stream = Stream(peer, subscription)
    (received,) = stream.take(1)
    stream.half_close()
    peer.deadline(subscription, [received], 0)
    assert bodies(peer.pull(subscription, 1)) == ["a"]


def test_a_cancelled_stream_does_not_swallow_what_is_given_back(peer: Peer) -> None:
    topic, subscription = peer.pair()
    peer.publish(topic, "a")
    stream = Stream(peer, subscription)
    (received,) = stream.take(1)
    stream.cancel()
    peer.deadline(subscription, [received], 0)
    assert bodies(peer.pull(subscription, 1, seconds=5)) == ["a"]


def test_a_stream_ends_when_its_subscription_is_deleted(peer: Peer) -> None:
    _, subscription = peer.pair()
    streaming = peer.subscriber.subscribe(subscription, callback=lambda message: message.ack())
    with pytest.raises(FutureTimeoutError):
        streaming.result(timeout=0.5)
    peer.subscriber.delete_subscription(subscription=subscription)
    with pytest.raises(exceptions.NotFound):
        streaming.result(timeout=20)


def test_a_subscription_outlives_its_topic(peer: Peer) -> None:
    topic, subscription = peer.pair()
    peer.publisher.delete_topic(topic=topic)
    assert peer.subscriber.get_subscription(subscription=subscription).topic == "_deleted-topic_"


def test_a_message_of_nine_megabytes_passes(peer: Peer) -> None:
    topic, subscription = peer.pair()
    peer.publish(topic, "x" * 9_000_000)
    # Against an emulator the official client takes 4 MiB at most; real channels have no limit.
    channel = grpc.insecure_channel(peer.address, [("grpc.max_receive_message_length", -1)])
    with channel:
        transport = pubsub_v1.SubscriberClient.get_transport_class("grpc")(channel=channel)
        request = pubsub_v1.types.PullRequest(subscription=subscription, max_messages=1)
        pulled = transport.pull(request, timeout=20, metadata=routing(subscription))
    assert [len(each.message.data) for each in pulled.received_messages] == [9_000_000]


def test_a_request_above_ten_megabytes_is_refused(peer: Peer) -> None:
    topic = peer.topic()
    message = {"data": b"x" * 10_500_000}
    with pytest.raises(exceptions.InvalidArgument):
        peer.publish_raw(topic, [message])


def test_what_does_not_exist_is_not_found(peer: Peer) -> None:
    topic, name = f"{PROJECT}/topics/none", f"{PROJECT}/subscriptions/none"
    subscriber = peer.subscriber
    calls: list[Callable[[], Any]] = [
        lambda: peer.publisher.get_topic(topic=topic),
        lambda: peer.publisher.publish(topic, b"a").result(timeout=20),
        lambda: peer.publisher.delete_topic(topic=topic),
        lambda: peer.subscription(topic),
        lambda: subscriber.get_subscription(subscription=name),
        lambda: subscriber.pull(subscription=name, max_messages=1),
        lambda: subscriber.acknowledge(subscription=name, ack_ids=["x"]),
        lambda: subscriber.subscribe(name, callback=print).result(timeout=20),
        lambda: subscriber.seek(request={"subscription": name, "time": datetime.now(UTC)}),
    ]
    for call in calls:
        with pytest.raises(exceptions.NotFound):
            call()


def test_names_are_taken_once(peer: Peer) -> None:
    topic, subscription = peer.pair()
    with pytest.raises(exceptions.AlreadyExists):
        peer.publisher.create_topic(name=topic)
    with pytest.raises(exceptions.AlreadyExists):
        peer.subscriber.create_subscription(name=subscription, topic=topic)


def test_what_cannot_be_is_an_invalid_argument(peer: Peer) -> None:
    topic, subscription = peer.pair()
    calls: list[Callable[[], Any]] = [
        lambda: peer.publisher.create_topic(name=f"{PROJECT}/topics/q1"),
        lambda: peer.publisher.create_topic(name="topic"),
        lambda: peer.publish_raw(topic, [{}]),
        lambda: peer.publish_raw(topic, [{"data": b"x"}] * 1001),
        lambda: peer.subscription(topic, ack_deadline_seconds=5),
        lambda: peer.subscription(topic, ack_deadline_seconds=601),
        lambda: peer.subscriber.acknowledge(subscription=subscription, ack_ids=["bogus-id"]),
    ]
    for call in calls:
        with pytest.raises(exceptions.InvalidArgument):
            call()


def test_refusals_use_googles_words(peer: Peer) -> None:
    topic = peer.topic()
    with pytest.raises(exceptions.NotFound, match=r"Resource not found \(resource=none\)\."):
        peer.publisher.get_topic(topic=f"{PROJECT}/topics/none")
    short = topic.rpartition("/")[2]
    words = rf"Resource already exists in the project \(resource={short}\)\."
    with pytest.raises(exceptions.AlreadyExists, match=words):
        peer.publisher.create_topic(name=topic)


def test_lists_come_in_pages_and_hold_only_their_project(peer: Peer) -> None:
    project = f"projects/p-{uuid.uuid4().hex}"
    names = [f"{project}/topics/topic-{n}" for n in range(5)]
    for name in names:
        peer.publisher.create_topic(name=name)
    listed = peer.publisher.list_topics(request={"project": project, "page_size": 2})
    assert sorted(topic.name for topic in listed) == names
    subscription = f"{project}/subscriptions/one"
    peer.subscriber.create_subscription(name=subscription, topic=names[0])
    assert list(peer.publisher.list_topic_subscriptions(topic=names[0])) == [subscription]
    found = [s.name for s in peer.subscriber.list_subscriptions(project=project)]
    assert found == [subscription]


def test_a_subscription_is_described_with_its_defaults_and_updated_by_mask(peer: Peer) -> None:
    topic = peer.topic()
    name = peer.subscription(topic, labels={"team": "x"})
    made = peer.subscriber.get_subscription(subscription=name)
    assert (made.topic, made.ack_deadline_seconds) == (topic, 10)
    assert made.message_retention_duration == timedelta(days=7)
    changed = {"name": name, "ack_deadline_seconds": 77, "labels": {}}
    mask = {"paths": ["ack_deadline_seconds"]}
    peer.subscriber.update_subscription(request={"subscription": changed, "update_mask": mask})
    after = peer.subscriber.get_subscription(subscription=name)
    assert (after.ack_deadline_seconds, dict(after.labels)) == (77, {"team": "x"})


def test_many_streams_share_a_subscription_without_sharing_a_message(peer: Peer) -> None:
    topic, subscription = peer.pair()
    streams = [Stream(peer, subscription, max_outstanding_messages=40) for _ in range(3)]
    sent = [f"m{n}" for n in range(90)]
    peer.publish(topic, *sent)
    got = list(itertools.chain(*(stream.take(40, seconds=1) for stream in streams)))
    assert sorted(bodies(got)) == sorted(sent)
    for stream in streams:
        stream.cancel()


@pytest.mark.parametrize("exactly_once", [False, True])
def test_everything_is_acknowledged_though_a_fifth_is_given_back(
    peer: Peer, exactly_once: bool
) -> None:
    topic, subscription = peer.pair(enable_exactly_once_delivery=exactly_once)
    sent = [f"m{n}" for n in range(400)]
    peer.publish(topic, *sent)
    rng = random.Random(7)
    done: list[str] = []
    all_there = threading.Event()

    def receive(message: Any) -> None:
        if rng.random() < 0.2:
            message.nack()
            return
        done.append(message.data.decode())
        message.ack()
        if len(set(done)) == len(sent):
            all_there.set()

    streaming = peer.subscriber.subscribe(subscription, callback=receive)
    assert all_there.wait(60)
    streaming.cancel()
    streaming.result(timeout=20)
    assert sorted(done) == sorted(sent)
    assert peer.is_empty(subscription)
