"""Talks to the coordinator, from the driver that holds it or from a worker through `rpc`.

A report is only advice: a commit is durable whether or not the driver heard of it. So a report that
fails is logged and never fails the work that it reports. A question that fails is an error.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

from epochal.clock import Clock
from epochal.errors import RpcError, StateCommitMissingError
from epochal.rpc.client import RpcClient
from epochal.rpc.server import RpcServer
from epochal.state.store.conf import StateStoreConf
from epochal.state.store.ids import StateStoreProviderId
from epochal.state.store.store_coordinator import (
    ENDPOINT,
    CommitsValidated,
    CoordinatorReply,
    CoordinatorRequest,
    DeactivateInstances,
    ExpectedStores,
    GetLocation,
    InstanceActive,
    InstanceReported,
    LaggingStore,
    LaggingStores,
    Location,
    LogLaggingStateStores,
    ReportActiveInstance,
    ReportSnapshotUploaded,
    ReportStateStoreCommit,
    StartStateStoreCommitTrackingForBatch,
    StateStoreCoordinator,
    ValidateStateStoreCommitForBatch,
    VerifyIfInstanceActive,
)

logger = logging.getLogger(__name__)


class StateStoreCoordinatorEndpoint:
    """The driver's coordinator with its clock and lock. It can be registered on a server."""

    def __init__(self, clock: Clock, conf: StateStoreConf | None = None) -> None:
        self._conf = conf or StateStoreConf()
        self._coordinator = StateStoreCoordinator(self._conf)
        self._clock = clock
        self._lock = threading.Lock()

    def register(self, server: RpcServer) -> None:
        """Answer workers that send messages to this server."""
        server.register(ENDPOINT, lambda message, _: self.ask(message))

    def ask(self, message: CoordinatorRequest) -> CoordinatorReply:
        """Answer one message. Lagging stores are also logged, in detail once per interval."""
        with self._lock:
            reply = self._coordinator.receive(message, self._clock.now_ms())
        if isinstance(reply, LaggingStores) and isinstance(message, LogLaggingStateStores):
            self._log_lag(reply, message)
        return reply

    def ref(self) -> StateStoreCoordinatorRef:
        """A reference for use on the driver itself."""
        return StateStoreCoordinatorRef(self.ask)

    def _log_lag(self, lag: LaggingStores, message: LogLaggingStateStores) -> None:
        if not lag.stores:
            return
        logger.warning(
            "run %s: the snapshots of %d state stores lag", message.run_id, len(lag.stores)
        )
        for store in lag.stores[: self._conf.max_lagging_stores_to_report if lag.report_due else 0]:
            logger.warning(
                "run %s: %s lags: its newest snapshot is %d at %d ms, the newest version is %d",
                message.run_id,
                store.provider_id.store_id,
                store.snapshot_version,
                store.snapshot_timestamp_ms,
                message.latest_version,
            )


class StateStoreCoordinatorRef:
    """The coordinator's client, for workers and for the driver."""

    def __init__(self, ask: Callable[[CoordinatorRequest], CoordinatorReply]) -> None:
        self._ask = ask

    @classmethod
    def through(cls, client: RpcClient) -> StateStoreCoordinatorRef:
        """Send messages through a client; the reference is as fork-safe as the client."""
        return cls(lambda message: client.ask(ENDPOINT, message))

    def report_active_instance(
        self,
        provider_id: StateStoreProviderId,
        host: str,
        executor_id: str,
        worker: str,
        others: Sequence[StateStoreProviderId],
    ) -> InstanceReported:
        """Claim the store for this worker. The reply names the stores to unload."""
        reply = self._ask(
            ReportActiveInstance(provider_id, host, executor_id, worker, tuple(others))
        )
        assert isinstance(reply, InstanceReported)
        return reply

    def verify_if_instance_active(
        self, provider_id: StateStoreProviderId, executor_id: str, worker: str
    ) -> bool:
        """Whether this worker still holds the store."""
        reply = self._ask(VerifyIfInstanceActive(provider_id, executor_id, worker))
        assert isinstance(reply, InstanceActive)
        return reply.active

    def get_location(self, provider_id: StateStoreProviderId) -> str | None:
        """The preferred executor for a task of this store, as Spark spells it."""
        reply = self._ask(GetLocation(provider_id))
        assert isinstance(reply, Location)
        return reply.executor

    def deactivate_instances(self, run_id: str) -> None:
        """Forget a run that has ended."""
        self._ask(DeactivateInstances(run_id))

    def snapshot_uploaded(
        self, provider_id: StateStoreProviderId, version: int, timestamp_ms: int
    ) -> None:
        """Report that a snapshot is on disk."""
        self._report(ReportSnapshotUploaded(provider_id, version, timestamp_ms))

    def report_state_store_commit(self, provider_id: StateStoreProviderId, version: int) -> None:
        """Report that a version is committed."""
        name = provider_id.store_id.store_name
        self._report(ReportStateStoreCommit(provider_id, version, name))

    def log_lagging_state_stores(
        self, run_id: str, latest_version: int, *, is_terminating_trigger: bool = False
    ) -> tuple[LaggingStore, ...]:
        """Find the stores with lagging snapshots; each writes one at its next commit."""
        reply = self._ask(LogLaggingStateStores(run_id, latest_version, is_terminating_trigger))
        assert isinstance(reply, LaggingStores)
        return reply.stores

    def start_commit_tracking(self, run_id: str, batch_id: int, expected: ExpectedStores) -> None:
        """Start recording which of the expected stores commit for a batch."""
        self._ask(StartStateStoreCommitTrackingForBatch(run_id, batch_id, expected))

    def validate_commits(self, run_id: str, batch_id: int) -> None:
        """Raise StateCommitMissingError unless all expected stores of the batch committed."""
        reply = self._ask(ValidateStateStoreCommitForBatch(run_id, batch_id))
        assert isinstance(reply, CommitsValidated)
        if reply.missing:
            raise StateCommitMissingError(batch_id, reply.expected, reply.found, reply.missing)

    def _report(self, message: ReportSnapshotUploaded | ReportStateStoreCommit) -> None:
        try:
            self._ask(message)
        except RpcError as error:
            logger.warning("could not report version %d to the driver: %s", message.version, error)
