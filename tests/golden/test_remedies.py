"""Every remedy can be obeyed: its commands, run as printed, leave a healthy checkpoint.

For each fault that `verify` finds, each command in the remedy is run on a copy of its own. A remedy
without a command must say so by one of two fixed phrases. What is left afterwards may only be
findings that a restart survives.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.golden.obeying import commands_in, findings_of, obey, planted
from tests.golden.planted import FAULTS, Fault

from epochal.tools.verify.findings import CANNOT, NOTHING, REPAIR, RULES, Severity, is_healthy

HONEST = {
    "COMMITS_BEHIND-no-commits": CANNOT,
    "CHECKPOINT_SWITCHED": NOTHING,
    "CONF_INCOMPLETE": NOTHING,
    "CONF_INVALID": CANNOT,
    "CHECKSUM_ORPHAN": NOTHING,
    "FILE_LOG_BATCH_MISMATCH": CANNOT,
    "FILE_LOG_HOLE": CANNOT,
    "FILE_LOG_HOLE-compact": CANNOT,
    "FILE_LOG_HOLE-torn-at-a-line": CANNOT,
    "FILE_UNREADABLE": CANNOT,
    "LOG_ENTRY_UNREADABLE-source": CANNOT,
    "LOG_ENTRY_UNREADABLE-truncated": NOTHING,
    "LOG_VERSION_UNKNOWN": CANNOT,
    "METADATA_UNREADABLE-directory": CANNOT,
    "NOT_A_DIRECTORY": CANNOT,
    "OFFSETS_GAP-further-back": NOTHING,
    "OFFSETS_GAP_ASYNC": NOTHING,
    "OFFSETS_MISSING-beside-commits": CANNOT,
    "OPERATOR_METADATA_MISSING": NOTHING,
    "OPERATOR_METADATA_MISSING-with-schema-log": CANNOT,
    "ROCKSDB_UNCHECKED": CANNOT,
    "SINK_FILE_MISSING": CANNOT,
    "SINK_OF_ANOTHER_QUERY": CANNOT,
    "STATE_FILE_UNREADABLE": NOTHING,
    "STATE_HOLE": NOTHING,
    "STATE_OPERATOR_MISSING": CANNOT,
    "STATE_OPERATOR_MISSING-named-by-a-commit": CANNOT,
    "STATE_PARTITION_MISSING": CANNOT,
    "STATE_SCHEMA_MISSING": NOTHING,
    "STATE_SCHEMA_UNREADABLE": CANNOT,
    "STATE_STORE_MISSING": CANNOT,
    "TIMESTAMP_BACKWARDS": NOTHING,
}
"""The faults that no command removes, and what their remedy says instead."""


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
        status = obey(command, place)
        left = findings_of(place, with_sink=fault.with_sink)
        assert [each for each in left if not each.remedy.startswith(NOTHING)] == [], command
        # A repair fails as long as `verify` does, even if only the next start removes the finding.
        still_failing = command[1] == "repair" and not is_healthy(left)
        assert status == (1 if still_failing else 0), command


@pytest.mark.parametrize(
    "fault", [each for each in FAULTS if HONEST.get(str(each)) == NOTHING], ids=str
)
def test_what_needs_no_remedy_is_no_error(fault: Fault, tmp_path: Path) -> None:
    [found] = findings_of(planted(fault, tmp_path), with_sink=fault.with_sink)
    assert found.severity is not Severity.ERROR


def test_the_batches_of_a_continuous_query_are_called_epochs(tmp_path: Path) -> None:
    [fault] = [each for each in FAULTS if each.code == "EPOCH_FILE_BROKEN"]
    [found] = findings_of(planted(fault, tmp_path), with_sink=False)
    command = "`epochal checkpoint rewind CHECKPOINT --to-batch 9 --sink OUTPUT`"
    assert found.remedy.startswith(f"Use {command}: epoch 9 is the newest whole one")


def test_a_file_of_another_partition_is_mended_by_a_rewind_and_not_by_a_repartition(
    tmp_path: Path,
) -> None:
    [fault] = [each for each in FAULTS if each.code == "STATE_KEY_WRONG_PARTITION"]
    [found] = findings_of(planted(fault, tmp_path), with_sink=False)
    told = ["--to-batch", "7", "--sink", "OUTPUT"]
    assert commands_in(found.remedy) == [["checkpoint", "rewind", "CHECKPOINT", *told]]


@pytest.mark.parametrize(
    "fault", [each for each in FAULTS if each.note.endswith("with-changelogs")], ids=str
)
def test_changelogs_replace_a_broken_snapshot_and_no_batch_is_dropped(
    fault: Fault, tmp_path: Path
) -> None:
    place = planted(fault, tmp_path)
    [found] = findings_of(place, with_sink=False)
    told = "removes the snapshot, which changelogs can replace."
    assert found.remedy == f"Use {REPAIR}: it {told}"
    before = sorted(path.name for path in place.checkpoint.glob("commits/*"))
    [command] = commands_in(found.remedy)
    assert obey(command, place) == 0
    assert findings_of(place, with_sink=False) == ()
    assert sorted(path.name for path in place.checkpoint.glob("commits/*")) == before


@pytest.mark.parametrize("code", RULES)
def test_the_table_has_a_command_or_an_honest_phrase_for_every_code(code: str) -> None:
    remedy = RULES[code].remedy
    named = commands_in(remedy)
    assert named or remedy.startswith((CANNOT, NOTHING)), remedy
    assert all("CHECKPOINT" in command for command in named), remedy
