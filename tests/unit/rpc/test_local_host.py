"""The local address that is announced to peers."""

from __future__ import annotations

import pytest

from epochal.rpc.driver_address import listening_address, local_host


def test_a_host_is_reached_by_the_address_by_which_it_reaches_its_peer() -> None:
    assert local_host("127.0.0.1") == "127.0.0.1"


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("localhost", "127.0.0.1"),
        ("127.0.0.7", "127.0.0.7"),
        ("0.0.0.0", "0.0.0.0"),
        ("[::1]", "::1"),
    ],
)
def test_a_name_is_turned_into_the_address_to_listen_at(host: str, address: str) -> None:
    assert listening_address(host) == address
