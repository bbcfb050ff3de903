"""Storage that fails below a Delta sink, in a process of its own.

    python -m tests.contract.delta_faults FAULT FOLDER

It writes an epoch, makes the storage fail, and says what became of the next epoch; then it mends
the storage and finishes that epoch. The last line is JSON.

Note: the disk is not really full. Files beyond a size limit fail in the same calls, and for every
user. `denied` gives up the rights of root, for whom nothing is forbidden.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.contract.delta_rig import Rig, row

from epochal.errors import EpochalError

NOBODY = 65534


def failure(action: Callable[[], Any]) -> str:
    try:
        action()
    except EpochalError as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def limit_files(size: int) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size if size >= 0 else hard, hard))


def main(fault: str, folder: Path) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # a write then fails instead
    if fault == "denied" and os.getuid() == 0:
        os.chown(folder, NOBODY, NOBODY)
        os.setuid(NOBODY)
    rig = Rig(folder)
    sink = rig.open()
    rig.write(sink, 0, [row(0)])
    messages = rig.prepare(sink, 1, [row(1)])
    log = Path(rig.path) / "_delta_log"
    if fault == "denied":
        Path(rig.path).chmod(0o500)
        log.chmod(0o500)
    else:
        limit_files(64)
    found = [failure(lambda: rig.prepare(sink, 2, [row(2)]))]
    found.append(failure(lambda: sink.real.commit(1, messages)))
    if fault == "denied":
        Path(rig.path).chmod(0o700)
        log.chmod(0o700)
    else:
        limit_files(-1)
    rig.decide(1, messages)
    again = rig.open()
    again.commit(1, messages)
    rig.write(again, 2, [row(2)])
    said = {"failures": found, "rows": rig.rows(), "files": len(rig.data_files())}
    sys.stdout.write("\n" + json.dumps(said) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
