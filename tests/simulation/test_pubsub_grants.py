"""Seeded lives of a Pub/Sub query: whatever dies, retries or repeats, nothing is lost."""

from __future__ import annotations

import contextlib
from collections import deque
from random import Random

import pytest
from tests.simulation.pubsub_world import Crash, ExactWorld, Subscription, World

MESSAGES = 120
SEEDS = 80


def outlived(seed: int, kind: type[World] = World, *, founding: bool = False) -> World:
    """A world after many crashes and a calm end."""
    rng = Random(seed)
    world = kind(rng, Subscription(deque(range(MESSAGES))), founding=founding)
    for _ in range(rng.randint(2, 8)):
        with contextlib.suppress(Crash):
            world.run(40)
    world.calm = True
    world.run(600)
    return world


@pytest.mark.parametrize("seed", range(SEEDS), ids=lambda seed: f"seed{seed}")
def test_every_message_is_output_and_acknowledged(seed: int) -> None:
    world = outlived(seed)
    assert world.subscription.done
    assert set(world.output) == set(range(MESSAGES))
    assert world.grants.all_confirmed


@pytest.mark.parametrize("seed", range(SEEDS), ids=lambda seed: f"seed{seed}")
def test_with_copies_every_message_is_output_once(seed: int) -> None:
    world = outlived(seed, ExactWorld)
    assert world.subscription.done
    assert sorted(world.output) == list(range(MESSAGES))


def test_the_founding_design_is_caught_losing_messages() -> None:
    worlds = [outlived(seed, founding=True) for seed in range(40)]
    lossy = [world for world in worlds if set(world.output) != world.subscription.acked]
    assert len(lossy) > 20
