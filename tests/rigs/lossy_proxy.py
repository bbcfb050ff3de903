"""A TCP proxy in front of a server that loses one answer: the one to a request with given bytes."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class LossyProxy:
    """Passes bytes in both directions until `lose` arms it."""

    def __init__(self, target: int) -> None:
        self._target, self._wanted = target, b""
        self.lost = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._acceptor = threading.Thread(target=self._accept)
        self._acceptor.start()

    @property
    def port(self) -> int:
        port: int = self._listener.getsockname()[1]
        return port

    def lose(self, wanted: bytes) -> None:
        """Let the next request with these bytes pass, and close the connection at its answer."""
        self._wanted = wanted

    def close(self) -> None:
        """End all connections, and the threads that serve them."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._acceptor.join()
        self._listener.close()

    def _accept(self) -> None:
        serving = []
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                serving.append(threading.Thread(target=self._serve, args=[client]))
                serving[-1].start()
        for each in serving:
            each.join()

    def _serve(self, client: socket.socket) -> None:
        doomed = threading.Event()
        with client, socket.create_connection(("127.0.0.1", self._target)) as server:
            words = (client, server, doomed, True)
            asking = threading.Thread(target=self._pass_on, args=words)
            asking.start()
            self._pass_on(server, client, doomed, False)
            asking.join()

    def _pass_on(
        self, source: socket.socket, sink: socket.socket, doomed: threading.Event, asks: bool
    ) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                if asks and self._wanted and self._wanted in data:
                    self._wanted = b""
                    doomed.set()
                elif not asks and doomed.is_set():
                    self.lost += 1
                    break
                sink.sendall(data)
        for each in (source, sink):  # wakes the other direction too, which closing would not
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


@contextmanager
def lossy_proxy(target: int) -> Iterator[LossyProxy]:
    """A proxy for a port of this host, which ends with the block."""
    proxy = LossyProxy(target)
    try:
        yield proxy
    finally:
        proxy.close()
