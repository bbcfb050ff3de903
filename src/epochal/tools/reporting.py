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


_add: ContextVar[Callable[[int, int], None] | None] = ContextVar("add", default=None)
"""Adds steps that are done, and steps that are known to be done."""


@contextmanager
def reporting(advance: Callable[[int, int], None]) -> Iterator[None]:
    """Call `advance` with the number of done and of known steps while the block runs."""
    done = total = 0

    def add(more_done: int, more: int) -> None:
        nonlocal done, total
        done, total = done + more_done, total + more
        advance(done, total)

    token = _add.set(add)
    try:
        yield
    finally:
        _add.reset(token)


def tracked(items: Sequence[T]) -> Iterator[T]:
    """Iterate over items; each is a step, which is done when the next one is asked for."""
    add = _add.get()
    if add is not None:
        add(0, len(items))
    for item in items:
        yield item
        if add is not None:
            add(1, 0)
