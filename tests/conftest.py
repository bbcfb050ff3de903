"""What tests of several folders share: how examples are drawn, and one real Kafka broker for the
whole run, if any asks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from epochal.testing.kafka import Kafka, running_kafka

settings.register_profile(
    "seeded",
    deadline=None,  # a busy machine is no fault
    derandomize=True,
    suppress_health_check=(HealthCheck.too_slow,),
)
settings.load_profile("seeded")


@pytest.fixture(scope="session")
def broker() -> Iterator[Kafka]:
    with running_kafka() as running:
        yield running
