"""Plans, summed up by directory."""

from __future__ import annotations

from epochal.cli.editing import directory_rows, word_for_epochs
from epochal.tools.edit.edit_plan import Change, Plan, Stamp


def deleted(path: str, size: int, why: str, root: str = "") -> Change:
    return Change(path, Stamp(size, 0), None, why, root)


CHANGES = [
    deleted("state/0/0/7.delta", 100, "delta of version 7"),
    deleted("state/0/0/8.delta", 100, "delta of version 8"),
    deleted("state/0/0/8.snapshot", 300, "snapshot of version 8"),
    deleted("state/0/1/8.delta", 100, "delta of version 8"),
    deleted("state/1/0/left/8.delta", 50, "delta of version 8"),
    deleted("offsets/7", 10, "batch after 6"),
    Change("metadata", None, b"12345", "new id {braces}"),
    deleted("part-0.parquet", 2048, "written after batch 6", "sink"),
]


def test_files_of_one_directory_and_partitions_of_one_operator_share_a_row() -> None:
    assert directory_rows(CHANGES) == [
        ("delete", "state/0/*", "4", "600 B", "delta of version 7 to 8, snapshot of version 8"),
        ("delete", "state/1/0/left", "1", "50 B", "delta of version 8"),
        ("delete", "offsets", "1", "10 B", "batch after 6"),
        ("create", ".", "1", "5 B", "new id {braces}"),
        ("delete", "sink:.", "1", "2.0 KiB", "written after batch 6"),
    ]


def test_reasons_with_commas_are_separated_by_semicolons() -> None:
    [row] = directory_rows(
        [
            deleted("state/0/0/4.delta", 1, "version 4, the same state as 3"),
            deleted("state/0/0/5.delta", 1, "version 5, the same state as 4"),
        ]
    )
    assert row[-1] == "version 4, the same state as 3; version 5, the same state as 4"


def test_a_plan_for_a_continuous_query_speaks_of_epochs_but_leaves_the_rows_alone() -> None:
    plan = Plan(
        "put", "as batch 3", tuple(CHANGES[5:6]), warnings=("A batch.",), details=("batch 3",)
    )
    said = word_for_epochs(plan)
    assert (said.summary, said.warnings, said.details) == (
        "as epoch 3",
        ("An epoch.",),
        ("batch 3",),
    )
    assert [each.why for each in said.changes] == ["epoch after 6"]


def test_a_dry_run_says_what_is_to_be_done_and_an_edit_what_was_done() -> None:
    plan = Plan("rewind", "", tuple(CHANGES))
    assert (plan.counts_to_do, plan.counts) == ("1 to create, 7 to delete", "1 created, 7 deleted")
