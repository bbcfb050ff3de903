"""Gives messages back to Pub/Sub at once if the task that holds them is killed.

Pub/Sub redelivers the messages of a dead client when their leases end, after 10 seconds at best. A
task therefore starts a small process beside itself and tells it which acknowledgement ids it holds.
If the pipe between them ends without a farewell, the task was killed, and the process nacks what
the task still held. A nack never does harm: it is what the end of the lease would do, only sooner,
and for a message that is already acknowledged it has no effect.

Note: if the whole host dies, so does this process, and the leases must end by themselves. The same
holds for messages that the task had received but not yet decoded.
"""

from __future__ import annotations

import logging
import os
import struct
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from enum import IntEnum
from typing import BinaryIO

import msgspec
import numpy as np

from epochal.connectors.pubsub.pubsub_options import SourceOptions
from epochal.connectors.pubsub.pull.ack_leases import LeaseBook, Rows, Span

logger = logging.getLogger(__name__)

RETRY = timedelta(seconds=20)
_HEAD = struct.Struct(">BII")
"""The kind of a message, the stream it is about, and the size of its content."""
_WIDTH = struct.Struct(">I")


class HandBackKind(IntEnum):
    """What a message says."""

    OPTIONS = 0
    HELD = 1
    SETTLED = 2
    FAREWELL = 3


class HandBack:
    """The task's side. It is thread-safe, and never fails: without it, leases end by themselves."""

    def __init__(self, options: SourceOptions) -> None:
        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        self._send(HandBackKind.OPTIONS, 0, msgspec.msgpack.encode(options))

    def held(self, stream: int, ids: Rows) -> None:
        """The task has got these messages from a stream, after those of the calls before."""
        self._send(HandBackKind.HELD, stream, encode_ids(ids))

    def settled(self, stream: int, spans: Sequence[Span]) -> None:
        """The task has acknowledged or nacked messages, given by their numbers."""
        self._send(HandBackKind.SETTLED, stream, np.array(spans, np.int64).tobytes())

    def close(self) -> None:
        """End the process: the task has given back itself what it held."""
        self._send(HandBackKind.FAREWELL, 0, b"")
        with suppress(OSError):
            assert self._process.stdin is not None
            self._process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(2.0)

    def _send(self, kind: int, stream: int, content: bytes) -> None:
        file = self._process.stdin
        assert file is not None
        try:
            with self._lock:
                file.write(_HEAD.pack(kind, stream, len(content)) + content)
                file.flush()
        except (OSError, ValueError) as error:  # it was killed, or the task is closing
            logger.debug("the process that hands messages back is gone: %s", error)


def main(file: BinaryIO) -> None:
    """Keep the ids until the pipe ends; nack them unless the task has said farewell."""
    options: SourceOptions | None = None
    books: defaultdict[int, LeaseBook] = defaultdict(LeaseBook)
    while len(head := file.read(_HEAD.size)) == _HEAD.size:
        kind, stream, size = _HEAD.unpack(head)
        content = file.read(size)
        if len(content) < size:
            break  # killed while it wrote this: nobody knows the rest, and those leases end alone
        match HandBackKind(kind):
            case HandBackKind.OPTIONS:
                options = msgspec.msgpack.decode(content, type=SourceOptions)
            case HandBackKind.HELD:
                books[stream].add(decode_ids(content))
            case HandBackKind.SETTLED:
                spans = np.frombuffer(content, np.int64).reshape(-1, 2)
                books[stream].settle([(int(low), int(high)) for low, high in spans])
            case HandBackKind.FAREWELL:
                return
    if options is not None:
        _give_back(options, list(books.values()))


def encode_ids(ids: Rows) -> bytes:
    """Encode the width of the ids and their bytes; or a width of 0 and a list, if it varies."""
    if isinstance(ids, list):
        return _WIDTH.pack(0) + msgspec.msgpack.encode(ids)
    return _WIDTH.pack(ids.shape[1]) + bytes(ids.data)


def decode_ids(content: bytes) -> Rows:
    (width,) = _WIDTH.unpack_from(content)
    if not width:
        return msgspec.msgpack.decode(content[_WIDTH.size :], type=list[bytes])
    return np.frombuffer(content, np.uint8, offset=_WIDTH.size).reshape(-1, width)


def _give_back(options: SourceOptions, books: Sequence[LeaseBook]) -> None:
    # Only now: most of these processes never need gRPC.
    from epochal.connectors.pubsub.connection import Connection
    from epochal.connectors.pubsub.pull.send_acks import Settler

    connection = Connection(replace(options, retry_timeout=RETRY))
    settler = Settler(connection, options.subscription)
    for book in books:
        settler.extend(book.all_held(), 0)
    connection.close()


if __name__ == "__main__":
    main(sys.stdin.buffer)
