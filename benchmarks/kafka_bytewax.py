"""Bytewax's side of `benchmarks.kafka`; runs in a separate environment.

python kafka_bytewax.py WORK SERVERS INPUT OUTPUT HOME
"""

from __future__ import annotations

import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

from bytewax import operators as op  # type: ignore[import-not-found]
from bytewax.connectors.kafka import KafkaSink, KafkaSinkMessage, KafkaSource  # type: ignore[import-not-found]
from bytewax.dataflow import Dataflow  # type: ignore[import-not-found]
from bytewax.recovery import RecoveryConfig, init_db_dir  # type: ignore[import-not-found]
from bytewax.run import cli_main  # type: ignore[import-not-found]


def marked(message: Any) -> Any:
    return KafkaSinkMessage(message.key, message.value + b"!")


def counted(count: int | None, message: Any) -> tuple[int, Any]:
    now = (count or 0) + 1
    return now, KafkaSinkMessage(message.key, b"%s,%d" % (message.value, now))


def main(work: str, servers: str, source: str, target: str, home: str) -> None:
    flow = Dataflow("kafka")
    read = op.input("in", flow, KafkaSource([servers], [source]))
    if work == "state":
        keyed = op.key_on("key", read, lambda message: message.key.decode())
        out = op.key_rm("drop", op.stateful_map("count", keyed, counted))
    else:
        out = op.map("map", read, marked)
    op.output("out", out, KafkaSink([servers], target, {"linger.ms": "1"}))
    recovery = None
    if work == "state":
        Path(home).mkdir(parents=True)
        init_db_dir(Path(home), 1)
        recovery = RecoveryConfig(home)
    cli_main(flow, epoch_interval=timedelta(milliseconds=100), recovery_config=recovery)


if __name__ == "__main__":
    main(*sys.argv[1:])
