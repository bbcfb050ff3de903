"""A client of the server that a test provides."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from epochal.rpc.client import RpcClient
from epochal.rpc.server import RpcServer


@pytest.fixture
def client(server: RpcServer) -> Iterator[RpcClient]:
    client = RpcClient(server.address)
    yield client
    client.close()
