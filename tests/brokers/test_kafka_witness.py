"""An independent client sees the committed group: Debian's kcat joins it and continues reading."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.integration.kafka_reading import options, reading, texts, values_of
from tests.integration.kafka_world import held, make_topic, unique, wait_for
from tests.rigs.debian import unpacked

from epochal.testing.kafka import Kafka


@pytest.mark.long  # fetches from Debian's archive
def test_kcat_goes_on_in_the_group_exactly_where_the_query_is(
    broker: Kafka, tmp_path: Path
) -> None:
    topic, group = make_topic(broker, unique("orders"), 1), unique("seen")
    texts(broker, topic, ["a", "b", "c"])
    given = options(broker, subscribe=topic) | {"kafka.consumer.commit.groupid": group}
    with reading(tmp_path, given) as (opened, reader):
        values_of(reader, 3)
        opened.acknowledge(0, reader.positions())
        wait_for(lambda: held(broker, group) == {(topic, 0): 3})
    texts(broker, topic, ["d", "e"])
    kcat = unpacked("kcat", "librdkafka1", "libyajl2")
    words = ("-b", broker.bootstrap_servers, "-G", group, "-c", "2", "-f", "%o %s\n", topic)
    assert kcat.run("kcat", *words).splitlines() == ["3 d", "4 e"]
