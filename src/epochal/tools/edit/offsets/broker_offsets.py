"""Asks a Kafka broker where partitions begin, end, or were at a moment: the only Kafka client here.

`confluent-kafka` (extra `kafka`) is imported when a broker is first asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from epochal.errors import OptionError, StorageError
from epochal.tools.edit.offsets.offset_targets import AskBroker, ToEarliest, ToLatest, ToTime

TIMEOUT_SECONDS = 30.0
NO_SUCH_OFFSET = -1


def broker(bootstrap_servers: str, config: Mapping[str, str]) -> AskBroker:
    """A function that asks the brokers at `bootstrap_servers`; `config` is librdkafka's."""

    def ask(
        partitions: Mapping[str, tuple[int, ...]], target: ToEarliest | ToLatest | ToTime
    ) -> Mapping[str, Mapping[int, int]]:
        kafka = _import_kafka()
        client = kafka.admin.AdminClient({**config, "bootstrap.servers": bootstrap_servers})
        places = [(topic, number) for topic, numbers in partitions.items() for number in numbers]
        found = _list_offsets(kafka, client, places, target, bootstrap_servers)
        after_the_end = [place for place, offset in found.items() if offset == NO_SUCH_OFFSET]
        if after_the_end:  # nothing was written since that moment: go on from the end
            found |= _list_offsets(kafka, client, after_the_end, ToLatest(), bootstrap_servers)
        answer: dict[str, dict[int, int]] = {}
        for (topic, number), offset in found.items():
            answer.setdefault(topic, {})[number] = offset
        return answer

    return ask


def _list_offsets(
    kafka: Any,
    client: Any,
    places: list[tuple[str, int]],
    target: ToEarliest | ToLatest | ToTime,
    bootstrap_servers: str,
) -> dict[tuple[str, int], int]:
    match target:
        case ToEarliest():
            wanted = kafka.admin.OffsetSpec.earliest()
        case ToLatest():
            wanted = kafka.admin.OffsetSpec.latest()
        case ToTime(moment_ms):
            wanted = kafka.admin.OffsetSpec.for_timestamp(moment_ms)
    request = {kafka.TopicPartition(topic, number): wanted for topic, number in places}
    found: dict[tuple[str, int], int] = {}
    try:
        answers = client.list_offsets(request, request_timeout=TIMEOUT_SECONDS)
        for place, answer in answers.items():
            found[place.topic, place.partition] = answer.result(TIMEOUT_SECONDS).offset
    except (kafka.KafkaException, TimeoutError) as error:
        raise StorageError(
            bootstrap_servers, f"the broker did not say its offsets: {error}"
        ) from error
    return found


def _import_kafka() -> Any:
    try:
        import confluent_kafka
        import confluent_kafka.admin
    except ImportError:
        raise OptionError(
            "Asking a Kafka broker needs the client: pip install 'epochal[kafka]'. Offsets given "
            "with --to-offset or --shift-by need none."
        ) from None
    return confluent_kafka
