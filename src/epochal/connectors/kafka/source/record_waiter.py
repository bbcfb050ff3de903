"""Waits for the next record of a client in a thread, and wakes the reader by a descriptor.

A client's queue has no descriptor that one could wait for together with sockets. So when a reader
has found the queue empty, this thread waits for the next record. Without it the record would wait
for the reader's next look, half a millisecond on average.

The client also reports that the end of a partition was reached; with several partitions it does so
about once per record. The thread keeps these reports and goes on waiting: they are no reason to
wake the reader.

Note: reader and thread never take records at the same time, because records must not overtake each
other. The thread takes them from `wait` until the reader has received the byte by which the thread
hands them over.
"""

from __future__ import annotations

import queue
import socket
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

POLL_SECONDS = 0.05
"""How often the thread looks whether it should end."""


class RecordWaiter(threading.Thread):
    """Takes the first record after a pause."""

    def __init__(self, consumer: Any, is_end: Callable[[Any], bool]) -> None:
        super().__init__(name="epochal-kafka-waiter", daemon=True)
        self._consumer, self._is_end = consumer, is_end
        self._asked: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._wakes, self._waker = socket.socketpair()
        self._wakes.setblocking(False)
        self._closed = False
        self._taken: Any = None
        self._ends: deque[Any] = deque()
        self._failure: BaseException | None = None
        self.is_waiting = False
        """Whether the thread waits for a record, or has one for the reader, who must take none from
        the client meanwhile. Only the reader sets this."""

    @property
    def fd(self) -> int:
        """Readable once the wait is over."""
        return self._wakes.fileno()

    def wait(self) -> None:
        """Wait for the next record from now on."""
        if not self.is_alive():
            self.start()
        self.is_waiting = True
        self._asked.put(None)

    def take(self) -> list[Any] | None:
        """Return what the wait has brought, in order; None while it goes on.

        There is at most one record, and it is the last. Raises what has ended the wait otherwise.
        """
        if self._taken is None and self._failure is None:
            return None
        try:
            self._wakes.recv(1)
        except BlockingIOError:
            return None  # the byte comes right after the record
        self.is_waiting = False
        if self._failure is not None:
            raise self._failure
        taken, self._taken = self._taken, None
        return [*self.take_ends(), taken]

    def take_ends(self) -> list[Any]:
        """Return the ends of partitions that were reached since the last call, also during a wait.

        A record that the thread holds comes after them.
        """
        return [self._ends.popleft() for _ in range(len(self._ends))]

    def run(self) -> None:
        while not self._closed:
            self._asked.get()
            taken = None
            try:
                while taken is None and not self._closed:
                    taken = self._consumer.poll(POLL_SECONDS)
                    if taken is not None and self._is_end(taken):
                        self._ends.append(taken)
                        taken = None
            except BaseException as error:  # noqa: BLE001 - the reader raises it
                self._failure = error
            self._taken = taken
            self._waker.send(b"\0")

    def close(self) -> None:
        self._closed = True
        self._asked.put(None)
        if self.is_alive():
            self.join()
        self._wakes.close()
        self._waker.close()
