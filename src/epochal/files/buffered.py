"""A file that is collected in memory and published as a whole when it is closed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self


class BufferedAtomicFile:
    """Passes everything that was written to `publish`, once, on close."""

    def __init__(self, publish: Callable[[bytes], None]) -> None:
        self._publish: Callable[[bytes], None] | None = publish
        self._content = bytearray()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._publish is None:
            raise ValueError("write to a closed file")
        self._content += data

    def close(self) -> None:
        publish, self._publish = self._publish, None
        if publish is not None:
            publish(bytes(self._content))

    def cancel(self) -> None:
        self._publish = None
        self._content.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.cancel()
