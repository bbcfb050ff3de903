"""Real processes race for log entries on a local disk: each id is written once, whole."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from epochal.checkpoint.entries import OffsetEntry, OffsetLog

WRITERS = 5
BATCHES = 11

WRITER = """
import json, sys
from epochal.checkpoint.entries import OffsetEntry, OffsetLog
from epochal.errors import ConcurrentUpdateError

directory, writer, batches = sys.argv[1], sys.argv[2], int(sys.argv[3])
log = OffsetLog(directory)
print("ready", flush=True)
sys.stdin.readline()
won = []
for batch_id in range(batches):
    try:
        if log.add(batch_id, OffsetEntry(1, (writer,) * 2000)):
            won.append(batch_id)
    except ConcurrentUpdateError:
        pass
print(json.dumps(won))
"""


def race(directory: Path) -> dict[str, list[int]]:
    """Start the writers, let them go at once, and return what each says it has written."""
    processes = {
        str(writer): subprocess.Popen(
            [sys.executable, "-c", WRITER, str(directory), str(writer), str(BATCHES)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for writer in range(WRITERS)
    }
    for process in processes.values():
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes.values():
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    won = {}
    for writer, process in processes.items():
        said, _ = process.communicate(timeout=120)
        assert process.returncode == 0
        won[writer] = json.loads(said)
    return won


def test_processes_that_race_write_every_id_once_and_the_winner_s_content_stays(
    tmp_path: Path,
) -> None:
    won = race(tmp_path)
    winners = {batch_id: writer for writer, ids in won.items() for batch_id in ids}
    assert sorted(batch_id for ids in won.values() for batch_id in ids) == list(range(BATCHES))
    assert OffsetLog(str(tmp_path), read_only=True).get_range() == [
        (batch_id, OffsetEntry(1, (winners[batch_id],) * 2000)) for batch_id in range(BATCHES)
    ]
    assert sorted(os.listdir(tmp_path)) == sorted(map(str, range(BATCHES)))
