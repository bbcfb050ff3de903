"""Waits for the next record of a client in a thread, and wakes the reader by a descriptor.

A client's queue has no descriptor that one could wait for together with sockets. So when a reader
has found the queue empty, this thread waits for the next record. Without it the record would wait
for the reader's next look, half a millisecond on average.

Note: reader and thread never take records at the same time, because records must not overtake each
other. Whoever has the turn is in `is_waiting`.
"""

from __future__ import annotations

import socket
import threading
from typing import Any

POLL_SECONDS = 0.05
"""How often the thread looks whether it should end."""


class RecordWaiter(threading.Thread):
    """Takes the first record after a pause."""

    def __init__(self, consumer: Any) -> None:
        super().__init__(name="epochal-kafka-waiter", daemon=True)
        self._consumer = consumer
        self._asked = threading.Semaphore(0)
        self._wakes, self._waker = socket.socketpair()
        self._wakes.setblocking(False)
        self._closed = False
        self._taken: Any = None
        self._failure: BaseException | None = None
        self.is_waiting = False
        """Whether the thread waits for a record. The reader must take none meanwhile."""

    @property
    def fd(self) -> int:
        """Readable once the wait is over."""
        return self._wakes.fileno()

    @property
    def holds_record(self) -> bool:
        """Whether the client counts a record as delivered that the reader does not have yet."""
        return self.is_waiting or self._taken is not None

    def wait(self) -> None:
        """Wait for the next record from now on."""
        if not self.is_alive():
            self.start()
        self.is_waiting = True
        self._asked.release()

    def take(self) -> Any:
        """Return the record that has come, or None; raise what has ended the wait otherwise."""
        if self._failure is not None:
            raise self._failure
        if self._taken is None:
            return None
        self._wakes.recv(1)
        taken, self._taken = self._taken, None
        return taken

    def run(self) -> None:
        while not self._closed:
            self._asked.acquire()
            taken = None
            try:
                while taken is None and not self._closed:
                    taken = self._consumer.poll(POLL_SECONDS)
            except BaseException as error:  # noqa: BLE001 - the reader raises it
                self._failure = error
            self._taken = taken
            # The byte comes first: a reader that sees the end of the wait takes the byte at once.
            self._waker.send(b"\0")
            self.is_waiting = False

    def close(self) -> None:
        self._closed = True
        self._asked.release()
        if self.is_alive():
            self.join()
        self._wakes.close()
        self._waker.close()
