"""More worlds than the tests run, or one that failed: `python -m tests.simulation.engine_run`."""

from __future__ import annotations

import argparse
import logging
import sys
import time

from tests.simulation.engine_trees import TreeWorld
from tests.simulation.engine_world import World
from tests.simulation.outage_world import OutageWorld


def main() -> int:
    """Run worlds and say which went wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seed", type=int, nargs="?", help="tell the story of this one")
    parser.add_argument("--seeds", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--trees", action="store_true", help="worlds with trees of stages")
    parser.add_argument("--outages", action="store_true", help="worlds with outages")
    asked = parser.parse_args()
    make = TreeWorld if asked.trees else OutageWorld if asked.outages else World
    logging.disable(logging.CRITICAL)
    if asked.seed is not None:
        world = make(asked.seed)
        wrong = world.run()
        tell(str(world.shape), *world.story, *wrong)
        return int(bool(wrong))
    started, failed = time.monotonic(), 0
    for done, seed in enumerate(range(asked.first, asked.first + asked.seeds), 1):
        wrong = make(seed).run()
        if wrong:
            failed += 1
            tell(f"seed {seed}: {wrong}")
        if done % 1_000 == 0:
            tell(f"{done} worlds, {failed} wrong, {time.monotonic() - started:.0f} s")
    tell(f"{asked.seeds} worlds, {failed} wrong")
    return int(failed > 0)


def tell(*lines: str) -> None:
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
