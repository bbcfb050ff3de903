"""Tells whoever waits how far a tool is, without a parameter in every function on the way.

A front end runs a tool under `reporting(advance)`. Inside, loops over stores and partitions run
over `tracked(items)`. Elsewhere `tracked` does nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")


class _Steps:
    """Counts what is done of what is known to be done."""

    def __init__(self, advance: Callable[[int, int], None]) -> None:
        self._advance = advance
        self._done = self._total = 0

    def add(self, done: int, total: int) -> None:
        self._done, self._total = self._done + done, self._total + total
        self._advance(self._done, self._total)


_steps: ContextVar[_Steps | None] = ContextVar("steps", default=None)


@contextmanager
def reporting(advance: Callable[[int, int], None]) -> Iterator[None]:
    """Call `advance` with the number of done and of known steps while the block runs."""
    token = _steps.set(_Steps(advance))
    try:
        yield
    finally:
        _steps.reset(token)


def tracked(items: Sequence[T]) -> Iterator[T]:
    """Iterate over items; each is a step, which is done when the next one is asked for."""
    steps = _steps.get()
    if steps is not None:
        steps.add(0, len(items))
    for item in items:
        yield item
        if steps is not None:
            steps.add(1, 0)
