"""The header that a call carries, as Google's own clients write it."""

from __future__ import annotations

import pytest
from google.api_core.gapic_v1.routing_header import to_grpc_metadata

from epochal.connectors.pubsub.connection import routing


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
