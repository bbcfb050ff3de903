"""The header that a call carries, as Google's own clients write it."""

from __future__ import annotations

import pytest
from google.api_core.gapic_v1.routing_header import to_grpc_metadata

from epochal.connectors.pubsub.connection import PUBLISHER, SUBSCRIBER, routing


@pytest.mark.parametrize(
    ("service", "method", "field", "resource"),
    [
        (PUBLISHER, "Publish", "topic", "projects/p/topics/t%+~"),
        (SUBSCRIBER, "StreamingPull", "subscription", "projects/p/subscriptions/s"),
        (SUBSCRIBER, "Acknowledge", "subscription", "projects/p:x/subscriptions/s"),
        (SUBSCRIBER, "CreateSubscription", "name", "projects/p/subscriptions/s"),
    ],
)
def test_the_routing_header_is_googles(
    service: str, method: str, field: str, resource: str
) -> None:
    assert routing(service, method, resource) == (to_grpc_metadata([(field, resource)]),)
