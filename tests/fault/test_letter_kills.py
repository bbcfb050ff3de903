"""Dead letters survive `kill -9`: none is lost, and none is repeated."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest
from tests.fault.letters_query import EVERY
from tests.fault.torment import Program, torment

from epochal.checkpoint import FileSinkLog

SHORT_SEED = 11


class LettersProgram(Program):
    module = "tests.fault.letters_query"

    def settle(self) -> None:
        self.until(lambda: not leftovers(self), "no letters of failed attempts")


def written(out: Path) -> list[int]:
    listed = FileSinkLog(str(out / "_spark_metadata"), read_only=True).all_files()
    names = [each.path.rpartition("/")[2] for each in listed]
    lines = [line for name in names for line in (out / name).read_text().splitlines()]
    return sorted(json.loads(line)["value"] for line in lines)


def lettered(folder: Path) -> list[int]:
    # Hidden files are copies that a killed driver did not finish. No reader looks at them.
    files = [each for each in folder.iterdir() if not each.name.startswith(".")]
    lines = [line for file in files for line in file.read_text().splitlines()]
    return sorted(json.loads(line)["row"]["value"] for line in lines)


def leftovers(program: Program) -> list[str]:
    """The staged letters of attempts before the newest."""
    staged = [each.name for each in (program.checkpoint / ".epochal" / "letters").iterdir()]
    newest = program.attempt()
    left = [name for name in staged if int(name.split("-")[1].removeprefix("a")) < newest]
    return left + [each.name for each in (program.out.parent / "letters").glob(".*")]


MANY = ["worker", "worker", "executor", "driver", "driver", "worker"]


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "seed", [SHORT_SEED, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(60, 64))]
)
def test_kills_leave_every_row_in_the_files_or_in_a_letter(tmp_path: Path, seed: int) -> None:
    kinds = ["worker", "driver", "worker"]
    if seed != SHORT_SEED:
        kinds = Random(seed).sample(MANY, len(MANY))
    program = LettersProgram(tmp_path, tmp_path / "driver.log")
    torment(program, kinds, seed)
    good, bad = written(program.out), lettered(tmp_path / "letters")
    assert sorted(good + bad) == list(range(len(good) + len(bad)))
    assert bad == [n for n in range(len(good) + len(bad)) if n % EVERY == 0]
    assert list((program.checkpoint / ".epochal" / "letters").iterdir()) == []
