"""Asks a Kafka broker for the earliest or latest offsets of partitions, or those at a time.

This is the only Kafka client in the tools. It imports `confluent-kafka` (extra `kafka`) when it
first asks a broker.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from epochal.errors import OptionError, StorageError
from epochal.tools.edit.offsets.offset_targets import AskBroker, ToEarliest, ToLatest, ToTime

TIMEOUT_SECONDS = 30.0
NO_SUCH_OFFSET = -1


def broker(bootstrap_servers: str, config: Mapping[str, str]) -> AskBroker:
    """Return a function that asks the brokers; `config` are settings of librdkafka."""

    def ask(
        partitions: Mapping[str, tuple[int, ...]], target: ToEarliest | ToLatest | ToTime
    ) -> Mapping[str, Mapping[int, int]]:
        kafka = _import_kafka()
        client = kafka.admin.AdminClient({**config, "bootstrap.servers": bootstrap_servers})
        wanted = [(topic, number) for topic, numbers in partitions.items() for number in numbers]
        found = _list_offsets(kafka, client, wanted, target, bootstrap_servers)
        # A partition without a record since that time has no offset for it: take its end.
        at_the_end = [each for each, offset in found.items() if offset == NO_SUCH_OFFSET]
        if at_the_end:
            found |= _list_offsets(kafka, client, at_the_end, ToLatest(), bootstrap_servers)
        answer: dict[str, dict[int, int]] = {}
        for (topic, number), offset in found.items():
            answer.setdefault(topic, {})[number] = offset
        return answer

    return ask


def _list_offsets(
    kafka: Any,
    client: Any,
    partitions: list[tuple[str, int]],
    target: ToEarliest | ToLatest | ToTime,
    bootstrap_servers: str,
) -> dict[tuple[str, int], int]:
    match target:
        case ToEarliest():
            spec = kafka.admin.OffsetSpec.earliest()
        case ToLatest():
            spec = kafka.admin.OffsetSpec.latest()
        case ToTime(moment_ms):
            spec = kafka.admin.OffsetSpec.for_timestamp(moment_ms)
    request = {kafka.TopicPartition(topic, number): spec for topic, number in partitions}
    found: dict[tuple[str, int], int] = {}
    try:
        answers = client.list_offsets(request, request_timeout=TIMEOUT_SECONDS)
        for each, answer in answers.items():
            found[each.topic, each.partition] = answer.result(TIMEOUT_SECONDS).offset
    except (kafka.KafkaException, TimeoutError) as error:
        raise StorageError(
            bootstrap_servers, f"the broker did not return its offsets: {error}"
        ) from error
    return found


def _import_kafka() -> Any:
    try:
        import confluent_kafka
        import confluent_kafka.admin
    except ImportError:
        raise OptionError(
            "Asking a Kafka broker needs its client, which is not installed. Run `pip install "
            "'epochal[kafka]'`. The options --to-offset and --shift-by work without it."
        ) from None
    return confluent_kafka
