"""What worlds have in common that prove by planted faults that they would notice."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol, TypeAlias

import pytest
from tests.simulation.world import NEVER_ENDS

Plant: TypeAlias = Callable[[pytest.MonkeyPatch], None]


class Seeded(Protocol):
    """A world that says what is wrong with how it ended."""

    def run(self) -> list[str]: ...


def wrong_worlds(make: Callable[[int], Seeded], seeds: Iterable[int]) -> dict[int, list[str]]:
    """What is wrong, by the seed of the world."""
    return {seed: wrong for seed in seeds if (wrong := make(seed).run())}


def is_found(make: Callable[[int], Seeded], seeds: int) -> bool:
    """Whether a planted fault does harm in one of so many worlds. To come to no end is no harm."""
    return any(_harm(make, seed) for seed in range(seeds))


def _harm(make: Callable[[int], Seeded], seed: int) -> list[str]:
    world = make(seed)
    try:
        return [each for each in world.run() if each != NEVER_ENDS]
    except (AssertionError, KeyError) as error:
        return [repr(error)]
