"""What tests of several folders share: one real Kafka broker for the whole run, if any asks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from epochal.testing.kafka import Kafka, running_kafka


@pytest.fixture(scope="session")
def broker() -> Iterator[Kafka]:
    with running_kafka() as running:
        yield running
