"""A process that reads messages as a task does, and then waits to be killed or to be told to end.

Usage: pubsub_holder.py OPTIONS-AS-JSON COUNT
"""

from __future__ import annotations

import json
import sys
import time

from epochal.connectors.pubsub.continuous_pubsub import PubSubReaders
from epochal.connectors.pubsub.pubsub_options import source_options


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main() -> None:
    options = source_options(json.loads(sys.argv[1]))
    reader = PubSubReaders(options, None).open({"0": "0", "1": "0"})
    count = 0
    while count < int(sys.argv[2]):
        batch = reader.read(1000)
        count += 0 if batch is None else batch.num_rows
        if batch is None:
            time.sleep(0.01)  # a reader never blocks
    reader.ended(0)
    reader.committed(0)
    say("ready")
    for line in sys.stdin:
        if line == "read more\n":
            while (batch := reader.read(1000)) is None:
                time.sleep(0.01)  # a reader never blocks
            say("more")
        else:
            reader.close()
            say("closed")
            return


main()
