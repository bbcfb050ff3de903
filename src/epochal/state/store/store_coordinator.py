"""Decides which worker holds each state store, which stores lag, and whether a batch is complete.

`StateStoreCoordinator` decides, without a clock, a lock or a socket: it takes a message and the
time, and returns a reply. For each run it records which worker last reported that it holds a store.
The last report wins; the former holder is told to unload the store when it next reports.

Note: in Spark the location of a store is an executor, which is one process. Here it is a Python
worker, and an executor has several. So a location includes the worker; only the text for Spark's
scheduler (`executor_HOST_ID`) leaves it out. The reply to a report contains `continued`: whether
the same worker held the store before. If not, another worker may have written since, and what this
one has cached must not be used.

The driver holds the coordinator (`StateStoreCoordinatorEndpoint`), and workers talk to it through
`rpc`. A report is only advice: a commit is durable whether or not the driver heard of it. So a
report that fails is logged and never fails the work that it reports. A question that fails is an
error.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias, TypeVar, assert_never

import msgspec

from epochal.checkpoint.layout import DEFAULT_STORE, StoreKey
from epochal.clock import Clock
from epochal.errors import RpcError, StateUsageError
from epochal.rpc.client import RpcClient
from epochal.rpc.envelope import EndpointType
from epochal.rpc.server import RpcServer
from epochal.state.store.conf import StateStoreConf, StateStoreProviderId

logger = logging.getLogger(__name__)

ExpectedStores: TypeAlias = dict[int, dict[str, int]]
"""Operator id to store name to number of partitions."""


class StoreMessage(msgspec.Struct, frozen=True, tag=True):
    """The base of all messages to and from the coordinator."""


class ReportActiveInstance(StoreMessage, frozen=True):
    """A worker has opened a store, and has the stores in `others` open too."""

    provider_id: StateStoreProviderId
    host: str
    executor_id: str
    worker: str = ""
    others: tuple[StateStoreProviderId, ...] = ()


class VerifyIfInstanceActive(StoreMessage, frozen=True):
    """Does this worker still hold the store?"""

    provider_id: StateStoreProviderId
    executor_id: str
    worker: str = ""


class GetLocation(StoreMessage, frozen=True):
    """On which executor should a task of this store run?"""

    provider_id: StateStoreProviderId


class DeactivateInstances(StoreMessage, frozen=True):
    """The run has ended: forget everything about it."""

    run_id: str


class ReportSnapshotUploaded(StoreMessage, frozen=True):
    """A snapshot of this version was written at this time."""

    provider_id: StateStoreProviderId
    version: int
    timestamp_ms: int


class LogLaggingStateStores(StoreMessage, frozen=True):
    """Which stores of the run have snapshots far behind `latest_version`?"""

    run_id: str
    latest_version: int
    is_terminating_trigger: bool = False


class StartStateStoreCommitTrackingForBatch(StoreMessage, frozen=True):
    """Start recording which of these stores commit for the batch."""

    run_id: str
    batch_id: int
    expected_stores: ExpectedStores


class ReportStateStoreCommit(StoreMessage, frozen=True):
    """A store has committed `version`, which belongs to batch `version - 1`."""

    provider_id: StateStoreProviderId
    version: int
    store_name: str = DEFAULT_STORE


class ValidateStateStoreCommitForBatch(StoreMessage, frozen=True):
    """Have all stores of the batch committed? Ends the tracking."""

    run_id: str
    batch_id: int


class Noted(StoreMessage, frozen=True):
    """The message was processed; there is nothing to report."""


class InstanceReported(StoreMessage, frozen=True):
    """What a worker must do about the stores it has open."""

    force_snapshot: bool = False
    unload: tuple[StateStoreProviderId, ...] = ()
    continued: bool = False


class InstanceActive(StoreMessage, frozen=True):
    """Whether the worker that asked holds the store."""

    active: bool


class Location(StoreMessage, frozen=True):
    """An executor as Spark spells it, or None if no worker holds the store."""

    executor: str | None


class LaggingStore(msgspec.Struct, frozen=True):
    """A store whose newest known snapshot is too old; version 0 if it has none."""

    provider_id: StateStoreProviderId
    snapshot_version: int
    snapshot_timestamp_ms: int


class LaggingStores(StoreMessage, frozen=True):
    """The lagging stores, furthest behind first, and whether to log them one by one now."""

    stores: tuple[LaggingStore, ...] = ()
    report_due: bool = False


class CommitsValidated(StoreMessage, frozen=True):
    """How many stores had to commit, how many did, and which did not."""

    expected: int
    committed: int
    missing: tuple[str, ...] = ()


CoordinatorRequest: TypeAlias = (
    ReportActiveInstance
    | VerifyIfInstanceActive
    | GetLocation
    | DeactivateInstances
    | ReportSnapshotUploaded
    | LogLaggingStateStores
    | StartStateStoreCommitTrackingForBatch
    | ReportStateStoreCommit
    | ValidateStateStoreCommitForBatch
)
CoordinatorReply: TypeAlias = (
    Noted | InstanceReported | InstanceActive | Location | LaggingStores | CommitsValidated
)

R = TypeVar("R", bound=CoordinatorReply)

ENDPOINT = EndpointType("StateStoreCoordinator", CoordinatorRequest, CoordinatorReply)


@dataclass(frozen=True, slots=True)
class WorkerLocation:
    """The process that holds a store."""

    host: str
    executor_id: str
    worker: str = ""

    def __str__(self) -> str:
        return f"executor_{self.host}_{self.executor_id}"


@dataclass(slots=True)
class _Run:
    """Everything known about one run of one query."""

    holders: dict[StateStoreProviderId, WorkerLocation] = field(default_factory=dict)
    snapshots: dict[StateStoreProviderId, tuple[int, int]] = field(default_factory=dict)
    lagging: frozenset[StateStoreProviderId] = frozenset()
    last_lag_report_ms: int = 0
    trackers: dict[int, _CommitTracker] = field(default_factory=dict)


@dataclass(slots=True)
class _CommitTracker:
    expected: ExpectedStores
    committed: set[StoreKey] = field(default_factory=set)

    def validate(self) -> CommitsValidated:
        wanted = [
            StoreKey(operator, partition, name)
            for operator, stores in self.expected.items()
            for name, partitions in stores.items()
            for partition in range(partitions)
        ]
        missing = tuple(
            f"(operator={key.operator}, partition={key.partition}, store={key.store})"
            for key in wanted
            if key not in self.committed
        )
        return CommitsValidated(len(wanted), len(self.committed), missing)


class StateStoreCoordinator:
    """Tracks the holder, snapshots and commits of every store of every run on this driver."""

    def __init__(self, conf: StateStoreConf | None = None) -> None:
        self._conf = conf or StateStoreConf()
        self._runs: dict[str, _Run] = {}

    def receive(self, message: CoordinatorRequest, now_ms: int) -> CoordinatorReply:
        """Process one message and return the reply to its sender."""
        match message:
            case ReportActiveInstance():
                return self._report(message)
            case VerifyIfInstanceActive(provider_id, executor_id, worker):
                holder = self._run(provider_id).holders.get(provider_id)
                return InstanceActive(
                    holder is not None
                    and (holder.executor_id, holder.worker) == (executor_id, worker)
                )
            case GetLocation(provider_id):
                holder = self._run(provider_id).holders.get(provider_id)
                return Location(None if holder is None else str(holder))
            case DeactivateInstances(run_id):
                self._runs.pop(run_id, None)
            case ReportSnapshotUploaded(provider_id, version, timestamp_ms):
                snapshots = self._run(provider_id).snapshots
                # An executor that lost the store may still finish an older snapshot.
                if version > snapshots.get(provider_id, (-1, 0))[0]:
                    snapshots[provider_id] = (version, timestamp_ms)
            case LogLaggingStateStores(run_id, latest_version, is_terminating_trigger):
                return self._lag(run_id, latest_version, is_terminating_trigger, now_ms)
            case StartStateStoreCommitTrackingForBatch(run_id, batch_id, expected_stores):
                trackers = self._run_to_change(run_id).trackers
                if batch_id in trackers:
                    raise _out_of_order(f"batch {batch_id} of run {run_id} is already tracked")
                trackers[batch_id] = _CommitTracker(expected_stores)
            case ReportStateStoreCommit(provider_id, version, store_name):
                tracker = self._run(provider_id).trackers.get(version - 1)
                if tracker is not None:
                    store = provider_id.store_id
                    tracker.committed.add(replace(store, store_name=store_name).key)
            case ValidateStateStoreCommitForBatch(run_id, batch_id):
                run = self._runs.get(run_id)
                tracker = None if run is None else run.trackers.pop(batch_id, None)
                if tracker is None:
                    raise _out_of_order(f"batch {batch_id} of run {run_id} is not tracked")
                return tracker.validate()
            case _:
                assert_never(message)
        return Noted()

    def _run(self, provider_id: StateStoreProviderId) -> _Run:
        return self._runs.get(provider_id.query_run_id) or _Run()

    def _run_to_change(self, run_id: str) -> _Run:
        return self._runs.setdefault(run_id, _Run())

    def _report(self, message: ReportActiveInstance) -> InstanceReported:
        location = WorkerLocation(message.host, message.executor_id, message.worker)
        run = self._run_to_change(message.provider_id.query_run_id)
        before = run.holders.get(message.provider_id)
        run.holders[message.provider_id] = location
        unload = tuple(
            other
            for other in message.others
            if self._run(other).holders.get(other, location) != location
        )
        return InstanceReported(message.provider_id in run.lagging, unload, before == location)

    def _lag(
        self, run_id: str, latest_version: int, is_terminating: bool, now_ms: int
    ) -> LaggingStores:
        run = self._runs.get(run_id)
        if run is None or not self._conf.report_snapshot_upload_lag:
            return LaggingStores()
        lagging = []
        for provider_id in run.holders:
            version, timestamp_ms = run.snapshots.get(provider_id, (0, 0))
            behind = latest_version - version > self._conf.min_version_lag
            late = now_ms - timestamp_ms > self._conf.min_time_lag_ms
            # A run with a terminating trigger may end before its first maintenance, so its stores
            # lag regardless of the time.
            if behind and (is_terminating or late):
                lagging.append(LaggingStore(provider_id, version, timestamp_ms))
        lagging.sort(key=lambda store: (store.snapshot_version, store.snapshot_timestamp_ms))
        if self._conf.force_snapshot_upload_on_lag:
            run.lagging = frozenset(store.provider_id for store in lagging)
        since_last_ms = now_ms - run.last_lag_report_ms
        due = bool(lagging) and since_last_ms > self._conf.snapshot_lag_report_interval_ms
        if due:
            run.last_lag_report_ms = now_ms
        return LaggingStores(tuple(lagging), due)


def _out_of_order(reason: str) -> StateUsageError:
    return StateUsageError("StateStoreCoordinator", reason, "STATE_STORE_OPERATION_OUT_OF_ORDER")


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
        message = ReportActiveInstance(provider_id, host, executor_id, worker, tuple(others))
        return self._answer(message, InstanceReported)

    def verify_if_instance_active(
        self, provider_id: StateStoreProviderId, executor_id: str, worker: str
    ) -> bool:
        """Whether this worker still holds the store."""
        message = VerifyIfInstanceActive(provider_id, executor_id, worker)
        return self._answer(message, InstanceActive).active

    def get_location(self, provider_id: StateStoreProviderId) -> str | None:
        """The preferred executor for a task of this store, as Spark spells it."""
        return self._answer(GetLocation(provider_id), Location).executor

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
        message = LogLaggingStateStores(run_id, latest_version, is_terminating_trigger)
        return self._answer(message, LaggingStores).stores

    def start_commit_tracking(self, run_id: str, batch_id: int, expected: ExpectedStores) -> None:
        """Start recording which of the expected stores commit for a batch."""
        self._ask(StartStateStoreCommitTrackingForBatch(run_id, batch_id, expected))

    def validate_commits(self, run_id: str, batch_id: int) -> None:
        """Raise StateUsageError unless all expected stores of the batch committed."""
        message = ValidateStateStoreCommitForBatch(run_id, batch_id)
        reply = self._answer(message, CommitsValidated)
        if reply.missing:
            raise StateUsageError(
                f"Batch {batch_id}",
                f"{reply.committed} of {reply.expected} state stores committed. Missing: "
                f"{', '.join(reply.missing)}. Their partitions were not processed to the end: "
                f"consume every row of the batch, and do not suppress exceptions.",
                "STATE_STORE_COMMIT_VALIDATION_FAILED",
            )

    def _answer(self, message: CoordinatorRequest, kind: type[R]) -> R:
        reply = self._ask(message)
        assert isinstance(reply, kind)
        return reply

    def _report(self, message: ReportSnapshotUploaded | ReportStateStoreCommit) -> None:
        try:
            self._ask(message)
        except RpcError as error:
            logger.warning("could not report version %d to the driver: %s", message.version, error)
