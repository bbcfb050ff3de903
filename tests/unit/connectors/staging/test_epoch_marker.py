"""What a marker means, compared with the log."""

from __future__ import annotations

from functools import partial

import pytest

from epochal.connectors.staging import epoch_marker
from epochal.connectors.staging.epoch_marker import (
    NO_EPOCH,
    History,
    LoggedEpoch,
    MarkedOutput,
    Marker,
    Refuse,
    Staged,
    is_decided,
    token_of,
)

OUTPUT = MarkedOutput(b"TEST", "topic", "it expired", "It was reset", "with a consumer")
pack = partial(epoch_marker.pack, magic=OUTPUT.magic)
unpack = partial(epoch_marker.unpack, magic=OUTPUT.magic)
logged_epoch = partial(epoch_marker.logged_epoch, magic=OUTPUT.magic)
check_marker = partial(epoch_marker.check_marker, output=OUTPUT)
plan_commit = partial(epoch_marker.plan_commit, output=OUTPUT)
ROWS = [pack(Staged(7, 3, 0, 2, inline=b"two rows")), pack(Staged(7, 3, 1, 0))]
EMPTY = [pack(Staged(7, 3, task, 0)) for task in range(2)]


def history(committed: int, *epochs: LoggedEpoch, newest: int | None = None) -> History:
    return History(committed if newest is None else newest, committed, epochs)


def reason(found: object) -> str:
    assert isinstance(found, Refuse)
    return found.reason


def test_a_message_comes_back_as_it_was() -> None:
    staged = Staged(7, 3, 1, 20, name="e7-a3-t1-00000000.arrow", checksum=5)
    assert unpack(pack(staged)) == staged


def test_messages_of_other_sinks_are_ignored() -> None:
    for message in (b"", b"[]", b"7-a3.arrow", pack(Staged(7, 3, 0, 0))[:-1]):
        assert unpack(message) is None
        assert logged_epoch(7, [message]) is None
    assert logged_epoch(7, []) is None
    assert logged_epoch(7, [*EMPTY, b""]) is None


def test_the_token_distinguishes_attempts_and_rows() -> None:
    other_attempt = [pack(Staged(7, 4, 0, 2, inline=b"two rows")), ROWS[1]]
    tokens = {token_of(each) for each in (ROWS, EMPTY, other_attempt, [b"".join(ROWS)])}
    assert len(tokens) == 4


def test_a_new_query_begins_with_a_marker_before_the_first_epoch() -> None:
    assert check_marker(None, history(NO_EPOCH), None) == Marker(NO_EPOCH)


def test_a_query_that_had_another_sink_begins_at_its_last_commit() -> None:
    assert check_marker(None, history(12, newest=13), None) == Marker(12)


def test_a_matching_marker_is_accepted() -> None:
    marker = Marker(7, token_of(ROWS))
    entry = LoggedEpoch(7, True, token_of(ROWS))
    for found in (
        history(7, entry),
        history(6, entry, newest=7),  # committed to Kafka, not yet in the commit log
        # nothing to write since
        history(9, LoggedEpoch(9, False, "e"), LoggedEpoch(8, False, "e"), entry),
        history(9, entry, newest=10),
        history(7, LoggedEpoch(8, True, "open"), entry, newest=8),
    ):
        assert check_marker(marker, found, None) is None


def test_a_missing_marker_beside_epochs_of_this_sink_is_refused() -> None:
    assert "missing" in reason(check_marker(None, history(7, LoggedEpoch(7, False, "e")), None))
    assert "missing" in reason(
        check_marker(None, history(NO_EPOCH, LoggedEpoch(0, True, "t"), newest=0), None)
    )


def test_a_marker_ahead_of_the_log_is_refused() -> None:
    assert "rewound" in reason(check_marker(Marker(7, "t"), history(5), None))
    assert "rewound" in reason(check_marker(Marker(0, "t"), history(NO_EPOCH), None))


def test_a_marker_behind_a_committed_epoch_with_rows_is_refused() -> None:
    found = history(
        8, LoggedEpoch(8, False, "e"), LoggedEpoch(7, True, "t"), LoggedEpoch(6, True, "s")
    )
    assert "epoch 7 is committed in the log" in reason(check_marker(Marker(6, "s"), found, None))


def test_a_marker_with_another_token_for_the_same_epoch_is_refused() -> None:
    assert "an epoch 7 that differs" in reason(
        check_marker(Marker(7, "t"), history(7, LoggedEpoch(7, True, "u")), None)
    )


def test_a_reset_works_only_at_the_epoch_it_names() -> None:
    lost = history(7, LoggedEpoch(7, True, "t"))
    assert check_marker(None, lost, 7) == Marker(7)
    assert isinstance(check_marker(None, lost, 6), Refuse)
    assert isinstance(check_marker(None, history(8, LoggedEpoch(8, True, "t")), 7), Refuse)
    fits = Marker(7, "t")
    assert check_marker(fits, lost, 7) is None


@pytest.mark.parametrize(
    ("marked", "entry", "decided"),
    [
        (7, LoggedEpoch(7, True, "t"), True),
        (6, LoggedEpoch(7, True, "t"), False),
        (6, LoggedEpoch(7, False, "e"), True),  # its entry is its decision
        (6, None, False),  # Spark's, or another sink's
    ],
)
def test_an_epoch_is_decided_by_its_marker_or_by_having_no_rows(
    marked: int, entry: LoggedEpoch | None, decided: bool
) -> None:
    assert is_decided(Marker(marked, "t"), 7, entry) is decided


def test_a_commit_writes_once() -> None:
    written = Marker(7, token_of(ROWS))
    assert plan_commit(Marker(6, "s"), 7, ROWS, refresh=False) == written
    assert plan_commit(written, 7, ROWS, refresh=True) is None


def test_an_epoch_without_rows_is_written_only_to_refresh_the_marker() -> None:
    assert plan_commit(Marker(5, "s"), 7, EMPTY, refresh=False) is None
    assert plan_commit(Marker(5, "s"), 7, EMPTY, refresh=True) == Marker(7, token_of(EMPTY))


@pytest.mark.parametrize(
    ("inputs", "rows", "writes"),
    [
        ((True, False), 0, True),  # the table becomes empty
        ((True, False), 2, True),
        ((False, False), 0, False),
        ((False, False), 2, False),  # the table has this result already
        ((None, None), 2, True),  # rows are added
        ((None, None), 0, False),
    ],
)
def test_a_whole_result_is_written_if_any_task_had_input(
    inputs: tuple[bool | None, ...], rows: int, writes: bool
) -> None:
    messages = [pack(Staged(7, 3, task, rows, replaces=had)) for task, had in enumerate(inputs)]
    wanted = Marker(7, token_of(messages)) if writes else None
    assert plan_commit(Marker(6, "s"), 7, messages, refresh=False) == wanted
    assert is_decided(Marker(6, "s"), 7, logged_epoch(7, messages)) is not writes


def test_a_commit_that_contradicts_the_marker_is_refused() -> None:
    for marker in (Marker(7, "other"), Marker(7, ""), Marker(8, token_of(ROWS))):
        assert isinstance(plan_commit(marker, 7, ROWS, refresh=False), Refuse)
    assert "another sink" in reason(plan_commit(Marker(6, "s"), 7, [b"x"], refresh=False))
