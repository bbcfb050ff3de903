from __future__ import annotations

import shlex

import pytest
from tests.golden.obeying import commands_in

from epochal.tools.verify.remedies import commands_to_run, with_places


@pytest.mark.parametrize("path", ["/data/my orders", "/data/$(reboot)", "/data/a;b", "/data/it's"])
def test_a_shell_takes_the_path_as_one_word(path: str) -> None:
    (command,) = commands_to_run("`epochal checkpoint repair CHECKPOINT`", path)
    assert shlex.split(command) == ["epochal", "checkpoint", "repair", path, "--execute"]


def test_alternatives_are_all_named_in_their_order() -> None:
    remedy = (
        "If the file is right, use `epochal checkpoint repair CHECKPOINT --code X`. Otherwise use "
        "`epochal checkpoint rewind CHECKPOINT --to-batch 7 --sink OUTPUT`."
    )
    assert commands_to_run(remedy, "c") == [
        "epochal checkpoint repair c --code X --execute",
        "epochal checkpoint rewind c --to-batch 7 --sink OUTPUT --execute",
    ]


def test_a_command_whose_batch_is_not_known_is_not_offered() -> None:
    remedy = "Use `epochal checkpoint rewind CHECKPOINT --to-batch N` to a batch."
    assert len(commands_in(remedy)) == 1
    assert commands_to_run(remedy, "c") == []


def test_a_remedy_for_people_names_their_directories_in_its_commands_only() -> None:
    remedy = (
        "Restore the CHECKPOINT, or use `epochal checkpoint rewind CHECKPOINT --to-batch 7 --sink "
        "OUTPUT`."
    )
    assert with_places(remedy, "my dir", "out") == (
        "Restore the CHECKPOINT, or use `epochal checkpoint rewind 'my dir' --to-batch 7 --sink "
        "out`."
    )
    assert with_places(remedy, "here").endswith("rewind here --to-batch 7 --sink OUTPUT`.")
