"""The endpoint of the epoch coordinator: its name, its modes and its log line."""

from __future__ import annotations

from typing import get_args

import pytest

from epochal.continuous.run.attempt import endpoint_of, register_coordinator
from epochal.epoch import messages
from epochal.rpc.server import RpcServer


def test_the_endpoint_has_sparks_name_and_its_registration_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "epochal.epoch.coordinator")
    server = RpcServer(advertised_host="127.0.0.1", bind_host="127.0.0.1")
    register_coordinator(server, endpoint_of("run-1"), lambda _message, _peer: None)
    server.stop()
    assert caplog.messages == ["Registered EpochCoordinator endpoint EpochCoordinator-run-1"]


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
