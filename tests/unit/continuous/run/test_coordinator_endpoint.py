"""The endpoint of the epoch coordinator: its name, its modes and its log line."""

from __future__ import annotations

from typing import get_args

from epochal.continuous.run.attempt import endpoint_of
from epochal.epoch import messages


def test_offsets_and_commits_are_one_way_and_sparks_other_messages_are_answered() -> None:
    endpoint = endpoint_of("run-1")
    one_way = set(get_args(endpoint.one_way))
    assert {messages.CommitPartitionEpoch, messages.ReportPartitionOffset} <= one_way
    assert {
        messages.GetCurrentEpoch,
        messages.IncrementAndGetEpoch,
        messages.SetReaderPartitions,
        messages.SetWriterPartitions,
        messages.StopContinuousExecutionWrites,
    } <= set(get_args(endpoint.requests)) - one_way
