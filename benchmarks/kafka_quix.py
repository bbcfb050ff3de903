"""Quix Streams' side of `benchmarks.kafka`. It runs in a separate environment.

python kafka_quix.py WORK SERVERS INPUT OUTPUT HOME
"""

from __future__ import annotations

import sys
from typing import Any

from quixstreams import Application  # type: ignore[import-not-found]


def marked(value: bytes) -> bytes:
    return value + b"!"


def counted(value: bytes, state: Any) -> bytes:
    count = state.get("n", 0) + 1
    state.set("n", count)
    return b"%s,%d" % (value, count)


def main(work: str, servers: str, source: str, target: str, home: str) -> None:
    app = Application(
        broker_address=servers,
        consumer_group=f"quix-{target}",
        auto_offset_reset="earliest",
        commit_interval=0.1,
        state_dir=home,
        auto_create_topics=True,
        producer_extra_config={"linger.ms": 1},
        loglevel="WARNING",
    )
    read = app.topic(source, value_deserializer="bytes", key_deserializer="bytes")
    written = app.topic(target, value_serializer="bytes", key_serializer="bytes")
    frame = app.dataframe(read)
    frame = frame.apply(counted, stateful=True) if work == "state" else frame.apply(marked)
    frame.to_topic(written)
    app.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
