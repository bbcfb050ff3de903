"""What a producer holds, and that nothing of it is left when it is closed."""

from __future__ import annotations

import gc
import os
import sys

import pytest

from epochal.connectors.kafka.sink.producer import RecordProducer

NOBODY = {"bootstrap.servers": "127.0.0.1:1"}


def held() -> tuple[int, int]:
    """The open files and threads of this process."""
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))


@pytest.mark.skipif(sys.platform != "linux", reason="counts what Linux shows of a process")
@pytest.mark.parametrize("settings", [{}, {"transactional.id": "query"}], ids=["plain", "exact"])
def test_a_closed_producer_leaves_no_connection_and_no_thread(settings: dict[str, str]) -> None:
    RecordProducer({**NOBODY, **settings}).close()  # the library keeps what it opens once
    gc.disable()  # tasks freeze what they have, so nobody looks for cycles there
    try:
        before = held()
        for _ in range(3):
            producer = RecordProducer({**NOBODY, **settings})
            if not settings:
                producer.send([("topic", b"never arrives", None)])
            producer.close()
        assert held() == before
    finally:
        gc.enable()
