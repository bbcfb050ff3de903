"""Where stores live, which lag, and whether all committed: the messages, one by one."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from epochal.errors import RpcRemoteError, StateUsageError
from epochal.rpc.client import RpcClient
from epochal.rpc.server import RpcServer
from epochal.state.store.conf import StateStoreConf, StateStoreId, StateStoreProviderId
from epochal.state.store.store_coordinator import (
    InstanceReported,
    StateStoreCoordinator,
    StateStoreCoordinatorEndpoint,
    StateStoreCoordinatorRef,
)
from epochal.testing.clock import ManualClock

RUN = "run-1"
CONF = StateStoreConf(min_deltas_for_snapshot=2, maintenance_interval_ms=1_000)


def store(partition: int = 0, run: str = RUN, name: str = "default") -> StateStoreProviderId:
    return StateStoreProviderId(StateStoreId("/c/state", 0, partition, name), run)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def ref(clock: ManualClock) -> StateStoreCoordinatorRef:
    return StateStoreCoordinatorEndpoint(clock, CONF).ref()


def claim(
    ref: StateStoreCoordinatorRef,
    provider_id: StateStoreProviderId,
    executor: str,
    *others: StateStoreProviderId,
    host: str = "h",
    worker: str = "",
) -> InstanceReported:
    return ref.report_active_instance(provider_id, host, executor, worker, others)


def test_a_reported_store_is_active_where_it_was_reported(ref: StateStoreCoordinatorRef) -> None:
    claim(ref, store(), "1", host="host-a")
    assert ref.verify_if_instance_active(store(), "1", "") is True
    assert ref.verify_if_instance_active(store(), "2", "") is False
    assert ref.get_location(store()) == "executor_host-a_1"
    assert ref.get_location(store(1)) is None
    assert ref.verify_if_instance_active(store(1), "1", "") is False


def test_a_reporter_learns_which_of_its_stores_another_executor_took(
    ref: StateStoreCoordinatorRef,
) -> None:
    claim(ref, store(0), "1")
    claim(ref, store(1), "1", store(0))
    claim(ref, store(0), "2")
    assert claim(ref, store(1), "1", store(0)).unload == (store(0),)
    assert claim(ref, store(1), "1", store(2)).unload == ()


def test_another_worker_of_the_same_executor_is_another_holder(
    ref: StateStoreCoordinatorRef,
) -> None:
    claim(ref, store(0), "1", worker="71")
    claim(ref, store(0), "1", worker="72")
    assert ref.verify_if_instance_active(store(0), "1", "71") is False
    assert claim(ref, store(1), "1", store(0), worker="71").unload == (store(0),)
    assert ref.get_location(store(0)) == "executor_h_1"


def test_a_report_says_whether_the_reporter_held_the_store_all_along(
    ref: StateStoreCoordinatorRef,
) -> None:
    assert claim(ref, store(), "1").continued is False
    assert claim(ref, store(), "1").continued is True
    assert claim(ref, store(), "2").continued is False
    assert claim(ref, store(), "1").continued is False


def test_deactivating_a_run_forgets_its_stores_and_no_others(ref: StateStoreCoordinatorRef) -> None:
    claim(ref, store(0, "run-1"), "1")
    claim(ref, store(1, "run-1"), "2")
    claim(ref, store(0, "run-2"), "1")
    ref.deactivate_instances("run-1")
    assert ref.get_location(store(0, "run-1")) is None
    assert ref.get_location(store(1, "run-1")) is None
    assert ref.get_location(store(0, "run-2")) == "executor_h_1"


def lagging(
    ref: StateStoreCoordinatorRef, version: int, run: str = RUN, *, terminating: bool = False
) -> list[StateStoreProviderId]:
    found = ref.log_lagging_state_stores(run, version, is_terminating_trigger=terminating)
    return [entry.provider_id for entry in found]


def test_a_store_lags_when_it_is_behind_in_versions_and_in_time(
    ref: StateStoreCoordinatorRef, clock: ManualClock
) -> None:
    claim(ref, store(0), "1")
    claim(ref, store(1), "1")
    ref.snapshot_uploaded(store(0), 5, clock.now_ms())
    ref.snapshot_uploaded(store(1), 20, clock.now_ms())
    assert lagging(ref, 30) == []
    clock.advance(10)
    assert lagging(ref, 30) == []
    clock.advance(0.001)
    assert lagging(ref, 15) == []
    assert lagging(ref, 16) == [store(0)]
    assert lagging(ref, 31) == [store(0), store(1)]


def test_a_run_that_ends_by_itself_lags_by_versions_alone(
    ref: StateStoreCoordinatorRef, clock: ManualClock
) -> None:
    claim(ref, store(), "1")
    ref.snapshot_uploaded(store(), 5, clock.now_ms())
    assert lagging(ref, 16) == []
    assert lagging(ref, 16, terminating=True) == [store()]


def test_a_store_that_never_wrote_a_snapshot_lags_as_if_from_version_0(
    ref: StateStoreCoordinatorRef,
) -> None:
    claim(ref, store(), "1")
    assert lagging(ref, 10) == []
    assert lagging(ref, 11) == [store()]


def test_an_older_snapshot_reported_late_changes_nothing(
    ref: StateStoreCoordinatorRef, clock: ManualClock
) -> None:
    claim(ref, store(), "1")
    ref.snapshot_uploaded(store(), 9, clock.now_ms())
    ref.snapshot_uploaded(store(), 4, clock.now_ms())
    clock.advance(60)
    (entry,) = ref.log_lagging_state_stores(RUN, 100)
    assert entry.snapshot_version == 9


def test_lag_is_judged_run_by_run(ref: StateStoreCoordinatorRef) -> None:
    claim(ref, store(0, "run-1"), "1")
    claim(ref, store(0, "run-2"), "1")
    assert lagging(ref, 50, "run-2") == [store(0, "run-2")]
    ref.deactivate_instances("run-2")
    assert lagging(ref, 50, "run-2") == []


def test_a_lagging_store_is_told_to_write_a_snapshot_until_it_has(
    ref: StateStoreCoordinatorRef, clock: ManualClock
) -> None:
    assert claim(ref, store(0), "1").force_snapshot is False
    claim(ref, store(1), "1")
    ref.snapshot_uploaded(store(1), 45, clock.now_ms())
    lagging(ref, 50)
    assert claim(ref, store(0), "1").force_snapshot is True
    assert claim(ref, store(1), "1").force_snapshot is False
    ref.snapshot_uploaded(store(0), 50, clock.now_ms())
    lagging(ref, 51)
    assert claim(ref, store(0), "1").force_snapshot is False


def test_no_snapshot_is_forced_when_the_feature_is_off(clock: ManualClock) -> None:
    conf = StateStoreConf(min_deltas_for_snapshot=2, force_snapshot_upload_on_lag=False)
    ref = StateStoreCoordinatorEndpoint(clock, conf).ref()
    claim(ref, store(), "1")
    assert lagging(ref, 50) == [store()]
    assert claim(ref, store(), "1").force_snapshot is False


def test_nothing_lags_when_lag_is_not_watched(clock: ManualClock) -> None:
    conf = StateStoreConf(min_deltas_for_snapshot=2, report_snapshot_upload_lag=False)
    ref = StateStoreCoordinatorEndpoint(clock, conf).ref()
    claim(ref, store(), "1")
    assert lagging(ref, 50) == []


def test_lagging_stores_are_listed_in_the_log_once_per_interval(
    ref: StateStoreCoordinatorRef, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    for partition in range(7):
        claim(ref, store(partition), "1")
    with caplog.at_level(logging.WARNING):
        lagging(ref, 50)
        lagging(ref, 51)
        clock.advance(301)
        lagging(ref, 52)
    listed = [record for record in caplog.records if "newest snapshot" in record.getMessage()]
    counted = [record for record in caplog.records if "7 state stores lag" in record.getMessage()]
    assert (len(listed), len(counted)) == (10, 3)


def test_a_batch_is_valid_when_every_expected_store_committed(
    ref: StateStoreCoordinatorRef,
) -> None:
    ref.start_commit_tracking(RUN, 4, {0: {"default": 2, "left": 1}})
    ref.report_state_store_commit(store(0), 5)
    ref.report_state_store_commit(store(1), 5)
    ref.report_state_store_commit(store(0, name="left"), 5)
    ref.validate_commits(RUN, 4)


def test_a_batch_with_a_store_that_did_not_commit_is_refused_by_name(
    ref: StateStoreCoordinatorRef,
) -> None:
    ref.start_commit_tracking(RUN, 4, {0: {"default": 3}})
    ref.report_state_store_commit(store(0), 5)
    ref.report_state_store_commit(store(1), 4)
    ref.report_state_store_commit(store(2, "run-2"), 5)
    with pytest.raises(StateUsageError) as refused:
        ref.validate_commits(RUN, 4)
    assert str(refused.value) == (
        "[STATE_STORE_COMMIT_VALIDATION_FAILED] Batch 4: 1 of 3 state stores committed. Missing: "
        "(operator=0, partition=1, store=default), (operator=0, partition=2, store=default). Their "
        "partitions were not processed to the end: consume every row of the batch, and do not "
        "suppress exceptions."
    )


def test_tracking_starts_once_and_ends_with_validation(ref: StateStoreCoordinatorRef) -> None:
    ref.start_commit_tracking(RUN, 4, {})
    with pytest.raises(StateUsageError):
        ref.start_commit_tracking(RUN, 4, {})
    ref.validate_commits(RUN, 4)
    with pytest.raises(StateUsageError):
        ref.validate_commits(RUN, 4)


def test_commits_of_a_batch_nobody_tracks_are_passed_over(ref: StateStoreCoordinatorRef) -> None:
    ref.report_state_store_commit(store(), 9)
    with pytest.raises(StateUsageError):
        ref.validate_commits(RUN, 8)


def test_a_run_leaves_nothing_behind_when_it_is_deactivated() -> None:
    coordinator = StateStoreCoordinator()
    ref = StateStoreCoordinatorRef(lambda message: coordinator.receive(message, 0))
    claim(ref, store(), "1")
    ref.start_commit_tracking(RUN, 1, {})
    ref.deactivate_instances(RUN)
    ref.snapshot_uploaded(store(), 3, 0)
    ref.report_state_store_commit(store(), 3)
    assert coordinator._runs == {}


@pytest.fixture
def server() -> Iterator[RpcServer]:
    with RpcServer(advertised_host="127.0.0.1", bind_host="127.0.0.1") as server:
        yield server


def test_several_references_speak_to_one_coordinator_over_sockets(
    server: RpcServer, clock: ManualClock
) -> None:
    endpoint = StateStoreCoordinatorEndpoint(clock, CONF)
    endpoint.register(server)
    clients = [RpcClient(server.address) for _ in range(2)]
    first, second = (StateStoreCoordinatorRef.through(client) for client in clients)
    claim(first, store(0), "1", store(1), worker="71")
    claim(second, store(0), "2", host="other", worker="80")
    assert claim(first, store(1), "1", store(0), worker="71").unload == (store(0),)
    assert endpoint.ref().get_location(store(0)) == "executor_other_2"
    assert first.verify_if_instance_active(store(0), "1", "71") is False
    first.start_commit_tracking(RUN, 0, {0: {"default": 2}})
    first.report_state_store_commit(store(0), 1)
    with pytest.raises(StateUsageError, match="1 of 2 state stores committed"):
        second.validate_commits(RUN, 0)
    with pytest.raises(RpcRemoteError):
        second.validate_commits(RUN, 0)
    for client in clients:
        client.close()


def test_a_report_that_cannot_be_delivered_does_not_fail_the_work(
    server: RpcServer, caplog: pytest.LogCaptureFixture
) -> None:
    client = RpcClient(server.address, timeout_seconds=0.2)
    StateStoreCoordinatorRef.through(client).report_state_store_commit(store(), 3)
    assert "could not report version 3 to the driver" in caplog.text
    client.close()
