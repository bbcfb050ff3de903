"""Every limit of the engine, as options of `write_stream`; what is none of them is the sink's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from epochal.continuous.run.restarts import RestartPolicy
from epochal.epoch.coordinator import MAX_BACKLOG, MAX_EPOCHS_IN_FLIGHT, Pace
from epochal.errors import OptionError
from epochal.options import options_of, read_options


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """How one query runs."""

    checkpoint_location: str | None = None
    """Where the query's history is kept. Without it the history ends with the process."""

    query_name: str | None = None

    epoch: timedelta = timedelta(milliseconds=100)
    """How long an epoch is. Output becomes visible, and is safe, once per epoch."""

    idle_epoch: timedelta = timedelta(seconds=10)
    """How long an epoch is in which nothing happens."""

    parallelism: int | None = None
    """Tasks, each of which holds a slot for as long as the query runs. By default as many as are
    free, but for a query without state no more than its sources have partitions."""

    state_partitions: int | None = None
    """Into how many parts state is divided, for the life of the checkpoint: the most tasks that
    can share it. By default the parallelism of the first run."""

    max_epochs_in_flight: int = MAX_EPOCHS_IN_FLIGHT
    """Epochs that are read but not committed. More let a slow disk be slower before reading
    slows down too."""

    epoch_backlog_queue_size: int = MAX_BACKLOG
    """Reports that may wait for others of their epoch; beyond it the query fails."""

    min_batches_to_retain: int = 100
    """Epochs whose log entries and state are kept, to go back to."""

    max_restarts: int = 20
    restart_window: timedelta = timedelta(minutes=10)
    max_fruitless_restarts: int = 3
    """In a row, without an epoch committed in between."""
    restart_backoff: timedelta = timedelta(milliseconds=100)
    max_restart_backoff: timedelta = timedelta(seconds=10)

    slot_timeout: timedelta = timedelta(seconds=5)
    """How long the first start waits for free slots before it says that there are too few."""

    executor_timeout: timedelta = timedelta(seconds=60)
    """How long a restart waits for slots: a lost executor takes its time to be replaced."""

    register_timeout: timedelta = timedelta(seconds=60)
    """How long tasks may take to come up."""

    ready_timeout: timedelta = timedelta(minutes=10)
    """How long tasks may take to load their state."""

    stop_timeout: timedelta = timedelta(seconds=60)
    """How long a graceful stop may take to reach the end of an epoch; then the tasks are killed,
    and the next start goes on from the last decided epoch."""

    discover_interval: timedelta = timedelta(seconds=10)
    """How often sources are asked for new partitions."""

    progress_interval: timedelta = timedelta(seconds=1)
    idle_interval: timedelta = timedelta(seconds=10)
    """How often listeners hear of a query that has nothing to do."""

    lease: timedelta = timedelta(seconds=30)
    """How long a driver may be silent before another may take the checkpoint over."""

    state_maintenance_interval: timedelta = timedelta(seconds=10)
    """How often tasks write snapshots of their state and delete what is no longer needed. Rarer
    makes a restart slower, since it reads all that changed since the last snapshot."""

    stall_timeout: timedelta = timedelta(minutes=2)
    """How long a query may commit nothing, not even an empty epoch, before its tasks are started
    again: one of them hangs. Longer than user code takes for one batch."""

    telemetry: bool = True
    """Whether the dashboard can follow the query, and epochs are traced where OpenTelemetry is
    configured. Written a few times a second by the thread that watches the query."""

    telemetry_location: str | None = None
    """The directory that the dashboard reads, on the driver's host and for its user alone. By
    default below `$XDG_RUNTIME_DIR`, or the user's cache."""

    metrics_port: int | None = None
    """Where Prometheus finds `/metrics` of the driver. Queries of a process may share one."""

    metrics_host: str = "127.0.0.1"
    """The address that it binds to. Anybody who reaches another one than loopback can read the
    metrics."""

    seed: int | None = None
    """Of the random part of waits; for tests."""

    def __post_init__(self) -> None:
        for name in ("parallelism", "state_partitions", "max_epochs_in_flight"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise OptionError(f"{name} must be at least 1, not {value}.")
        if self.epoch <= timedelta(0):
            raise OptionError(f"An epoch must have a length, not {self.epoch}.")
        if self.metrics_port is not None and not 1 <= self.metrics_port <= 65_535:
            raise OptionError(f"metricsPort must be 1 to 65535, not {self.metrics_port}.")
        if self.min_batches_to_retain < 1:
            raise OptionError(
                f"minBatchesToRetain must be at least 1, not {self.min_batches_to_retain}: the "
                f"newest entry is what a restart goes on from."
            )

    @property
    def pace(self) -> Pace:
        """What the coordinator needs to know of it."""
        return Pace(
            epoch_seconds=self.epoch.total_seconds(),
            idle_epoch_seconds=max(self.idle_epoch, self.epoch).total_seconds(),
            max_epochs_in_flight=self.max_epochs_in_flight,
            max_backlog=self.epoch_backlog_queue_size,
            register_seconds=self.register_timeout.total_seconds(),
            ready_seconds=self.ready_timeout.total_seconds(),
        )

    @property
    def maintenance_ms(self) -> int:
        return max(1, self.state_maintenance_interval // timedelta(milliseconds=1))

    @property
    def restarts(self) -> RestartPolicy:
        """What is done about failures."""
        return RestartPolicy(
            max_restarts=self.max_restarts,
            window_seconds=self.restart_window.total_seconds(),
            max_fruitless=self.max_fruitless_restarts,
            backoff_seconds=self.restart_backoff.total_seconds(),
            max_backoff_seconds=self.max_restart_backoff.total_seconds(),
        )


def split_options(given: Mapping[str, str]) -> tuple[EngineOptions, dict[str, str]]:
    """The engine's options among those given to `write_stream`, and the rest: the sink's."""
    known = {name.lower() for info in options_of(EngineOptions) for name in (info.name, *info.also)}
    mine = {key: text for key, text in given.items() if key.lower() in known}
    rest = {key: text for key, text in given.items() if key.lower() not in known}
    return read_options(EngineOptions, mine, of="write_stream"), rest


def task_count(options: EngineOptions, readers: int, stateful: bool, free: int) -> int:
    """How many tasks a run has, given the free slots."""
    if options.parallelism is not None:
        return options.parallelism
    wanted = free if stateful else min(free, readers)
    return max(1, wanted)
