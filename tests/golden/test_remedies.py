"""Every remedy can be obeyed: its commands, run as printed, leave a healthy checkpoint.

For each fault that `verify` finds, each command in the remedy is run on a copy of its own. A remedy
without a command must say so by one of two fixed phrases. What is left afterwards may only be
findings that a restart survives.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.golden.library import Golden, Unpacked, unpack
from tests.golden.planted import FAULTS, Fault

from epochal.cli.main import main
from epochal.files.local import LocalFiles
from epochal.tools.verify.depth import Depth
from epochal.tools.verify.findings import CANNOT, NOTHING, RULES, Finding
from epochal.tools.verify.verify import verify

UNTOUCHED = ("--execute", "--settle-seconds", "0")

HONEST = {
    "COMMITS_BEHIND-no-commits": CANNOT,
    "CONF_INCOMPLETE": NOTHING,
    "CONF_INVALID": CANNOT,
    "CHECKSUM_ORPHAN": NOTHING,
    "FILE_LOG_BATCH_MISMATCH": CANNOT,
    "FILE_LOG_HOLE": CANNOT,
    "FILE_LOG_HOLE-compact": CANNOT,
    "FILE_UNREADABLE": CANNOT,
    "LOG_ENTRY_UNREADABLE-empty": NOTHING,
    "LOG_ENTRY_UNREADABLE-source": CANNOT,
    "LOG_ENTRY_UNREADABLE-truncated": NOTHING,
    "LOG_VERSION_UNKNOWN": CANNOT,
    "LOG_VERSION_UNKNOWN-commit": CANNOT,
    "NOT_A_DIRECTORY": CANNOT,
    "OFFSETS_GAP-further-back": NOTHING,
    "OFFSETS_GAP_ASYNC": NOTHING,
    "OFFSETS_MISSING-beside-commits": CANNOT,
    "SINK_FILE_MISSING": CANNOT,
    "STATE_FILE_UNREADABLE": NOTHING,
    "STATE_HOLE": NOTHING,
    "STATE_HOLE-the-first": NOTHING,
    "STATE_OPERATOR_MISSING": CANNOT,
    "STATE_OPERATOR_MISSING-named-by-a-commit": CANNOT,
    "STATE_PARTITION_MISSING": CANNOT,
    "STATE_SCHEMA_UNREADABLE": CANNOT,
    "STATE_STORE_MISSING": CANNOT,
    "TIMESTAMP_BACKWARDS": NOTHING,
}
"""The faults that no command removes, and what their remedy says instead."""


def planted(fault: Fault, into: Path) -> Unpacked:
    place = unpack(Golden(fault.release, fault.case), into, relocate=fault.relocate)
    fault.plant(place.checkpoint)
    return place


def findings_of(place: Unpacked, *, with_sink: bool) -> tuple[Finding, ...]:
    sink = LocalFiles(place.output) if with_sink else None
    return verify(LocalFiles(place.checkpoint), depth=Depth.DEEP, sink=sink).findings


def commands_in(remedy: str) -> list[list[str]]:
    return [found.split()[1:] for found in re.findall(r"`(epochal [^`]+)`", remedy)]


def obey(command: list[str], place: Unpacked) -> int:
    places = {"CHECKPOINT": str(place.checkpoint), "OUTPUT": str(place.output)}
    return main([*(places.get(word, word) for word in command), *UNTOUCHED])


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_obeying_a_remedy_leaves_a_healthy_checkpoint(fault: Fault, tmp_path: Path) -> None:
    [found] = findings_of(planted(fault, tmp_path / "0"), with_sink=fault.with_sink)
    commands = commands_in(found.remedy)
    if str(fault) in HONEST:
        assert (commands, found.remedy.startswith(HONEST[str(fault)])) == ([], True), found.remedy
        return
    assert commands, found.remedy
    for number, command in enumerate(commands, 1):
        assert "CHECKPOINT" in command, found.remedy
        place = planted(fault, tmp_path / str(number))
        assert obey(command, place) == 0, command
        left = findings_of(place, with_sink=fault.with_sink)
        assert [each for each in left if not each.remedy.startswith(NOTHING)] == [], command


def test_a_file_of_another_partition_is_mended_by_a_rewind_and_not_by_a_repartition(
    tmp_path: Path,
) -> None:
    [fault] = [each for each in FAULTS if each.code == "STATE_KEY_WRONG_PARTITION"]
    [found] = findings_of(planted(fault, tmp_path), with_sink=False)
    assert commands_in(found.remedy) == [["checkpoint", "rewind", "CHECKPOINT", "--to-batch", "7"]]


@pytest.mark.parametrize("code", RULES)
def test_the_table_has_a_command_or_an_honest_phrase_for_every_code(code: str) -> None:
    remedy = RULES[code].remedy
    named = commands_in(remedy)
    assert named or remedy.startswith((CANNOT, NOTHING)), remedy
    assert all("CHECKPOINT" in command for command in named), remedy
