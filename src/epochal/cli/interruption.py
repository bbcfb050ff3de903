"""What Ctrl-C leaves behind, said in one line.

A command that changes nothing needs none of this: `main` says so. A command that changes something
runs its work under `says_when_interrupted`, with a function that looks at what has been done.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

EXIT_INTERRUPTED = 130
NOTHING_CHANGED = "Interrupted. Nothing was changed."


class Interrupted(Exception):
    """Ctrl-C, and what it has left."""


@contextmanager
def says_when_interrupted(what_is_left: Callable[[], str]) -> Iterator[None]:
    """Run the block; on Ctrl-C raise `Interrupted` with the words of `what_is_left`."""
    try:
        yield
    except KeyboardInterrupt:
        # A second Ctrl-C must not keep the user from learning what the first one left.
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            raise Interrupted(what_is_left()) from None
        finally:
            signal.signal(signal.SIGINT, before)
