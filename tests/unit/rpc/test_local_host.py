"""The local address that is announced to peers."""

from __future__ import annotations

from epochal.rpc.local_host import local_host


def test_a_host_is_reached_by_the_address_by_which_it_reaches_its_peer() -> None:
    assert local_host("127.0.0.1") == "127.0.0.1"
