"""The engine's options of `write_stream`. Every other option is passed to the sink."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from epochal.continuous.run.restarts import RestartPolicy
from epochal.epoch.open_epoch import MAX_BACKLOG, MAX_EPOCHS_IN_FLIGHT, Pace
from epochal.errors import OptionError
from epochal.evaluator.executor_jvm import DEFAULT_MEMORY_MB, MIN_MEMORY_MB
from epochal.options import ByteSize, option_name, options_of, read_options
from epochal.state.disk.local_database import MIN_MEMORY_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """The options of one query."""

    checkpoint_location: str | None = None
    """Where the query stores its offsets, commits and state. Without it they are stored in a
    temporary directory, and the query cannot be resumed."""

    query_name: str | None = None

    epoch: timedelta = timedelta(milliseconds=100)
    """Length of an epoch. Output becomes visible and durable once per epoch."""

    available_now: bool = False
    """Whether to process what the sources contain at the start, and then to end."""

    once: bool = False
    """As availableNow, but always in one epoch, whatever bounds the sources have."""

    idle_epoch: timedelta = timedelta(seconds=10)
    """Length of an epoch in which nothing happens."""

    parallelism: int | None = None
    """Number of tasks. Each occupies a slot for as long as the query runs. By default as many as
    there are free slots, but without state not more than the sources have partitions. Of three or
    more free slots, one is left to other jobs."""

    state_partitions: int | None = None
    """Number of state partitions, fixed for the life of the checkpoint. At most this many tasks can
    share the state. By default the parallelism of the first run."""

    max_epochs_in_flight: int = MAX_EPOCHS_IN_FLIGHT
    """Maximum number of epochs that are read but not committed. With more, slow storage delays
    reading later."""

    epoch_backlog_queue_size: int = MAX_BACKLOG
    """Maximum number of reports that wait for others of their epoch. Beyond it the query fails."""

    min_batches_to_retain: int = 100
    """Number of epochs whose log entries and state are kept, for a rewind."""

    outage_timeout: timedelta = timedelta(minutes=10)
    """How long the query waits for storage, a broker, a database, a catalog, a schema registry or
    free slots before it gives up. With 0 it waits for ever."""

    max_restarts: int = 5
    """In a row, without a committed epoch in between, after lost workers and unknown errors."""

    slot_timeout: timedelta = timedelta(seconds=5)
    """How long a start waits for free slots before it fails. A restart tries again after that."""

    register_timeout: timedelta = timedelta(seconds=60)
    """How long tasks may take to start and register."""

    ready_timeout: timedelta = timedelta(minutes=10)
    """How long tasks may take to load their state."""

    stop_timeout: timedelta = timedelta(seconds=60)
    """How long a graceful stop may take to reach the end of an epoch. After that the tasks are
    killed, and the next start continues from the last decided epoch."""

    discover_interval: timedelta = timedelta(seconds=10)
    """How often sources are asked for new partitions."""

    static_refresh: timedelta | None = None
    """How often the tables that a DataFrame joins its stream with are read again. By default they
    are read at the start only. The tasks restart at the end of an epoch, which takes about a
    second."""

    progress_interval: timedelta = timedelta(seconds=1)
    idle_interval: timedelta = timedelta(seconds=10)
    """How often listeners get an idle event from a query without data."""

    lease: timedelta = timedelta(seconds=30)
    """How long a driver may be silent before another one may take over the checkpoint."""

    publish_interval: timedelta = timedelta(seconds=10)
    """How often tasks write their whole state under Spark's names and delete old files; with large
    state less often, so that it takes at most a tenth of their time. A longer interval makes a
    restart slower, because it reads all changes since then."""

    state_memory: ByteSize | None = None
    """How much memory each task uses for its state. The rest is on local disk. By default all state
    is in memory, which is faster but needs some hundred bytes for each key."""

    state_local_dir: str | None = None
    """The local directory for state that does not fit into `stateMemory`, on every host. By default
    the directory for temporary files."""

    evaluator_memory: ByteSize = DEFAULT_MEMORY_MB << 20
    """How much memory the process may use that runs Spark's own code for the tasks of an executor.
    Part of the executor's memory overhead. Queries with the same value share the process."""

    stall_timeout: timedelta = timedelta(minutes=2)
    """How long an epoch that has ended may take to be committed, before the tasks are restarted
    because one of them hangs. Must be longer than user code takes for one batch. Neither the start
    of the tasks nor an idle epoch counts."""

    silence_timeout: timedelta = timedelta(seconds=10)
    """How long a task on a cluster may send no pulse before its host counts as lost, and the query
    restarts without it. Must be longer than user code holds Python's interpreter lock."""

    telemetry: bool = True
    """Whether the dashboard can show the query, and epochs are traced if OpenTelemetry is
    configured. Written a few times a second by the thread that watches the query."""

    telemetry_location: str | None = None
    """The directory that the dashboard reads, on the driver's host and readable by its user only.
    By default below `$XDG_RUNTIME_DIR` or the user's cache directory."""

    metrics_port: int | None = None
    """Port of the driver's `/metrics` for Prometheus. Queries of one process may share it."""

    metrics_host: str = "127.0.0.1"
    """The address that the metrics server binds to. All who can reach it can read the metrics."""

    seed: int | None = None
    """Seed of the random part of waits; for tests."""

    def __post_init__(self) -> None:
        if self.query_name is not None and not self.query_name.strip():
            raise OptionError("queryName must not be empty. Give the query a name, or remove it.")
        for field in ("parallelism", "state_partitions", "max_epochs_in_flight"):
            count = getattr(self, field)
            if count is not None and count < 1:
                raise OptionError(f"{option_name(field)} must be at least 1, not {count}.")
        timeouts = ("register_timeout", "ready_timeout", "stall_timeout")
        for field in ("epoch", "idle_epoch", "lease", *timeouts, "static_refresh"):
            time = getattr(self, field)
            if time is not None and time <= timedelta(0):
                raise OptionError(
                    f"{option_name(field)} must be longer than 0 seconds, not {time}."
                )
        if self.silence_timeout < timedelta(seconds=1):
            raise OptionError(
                f"silenceTimeout must be at least 1 second, not {self.silence_timeout}: a busy "
                f"host is late by some tenths of a second."
            )
        if self.metrics_port is not None and not 1 <= self.metrics_port <= 65_535:
            raise OptionError(f"metricsPort must be 1 to 65535, not {self.metrics_port}.")
        if self.min_batches_to_retain < 1:
            raise OptionError(
                f"minBatchesToRetain must be at least 1, not {self.min_batches_to_retain}: a "
                f"restart continues from the newest entry."
            )
        self._check_together()

    def _check_together(self) -> None:
        """Refuse options that are valid one by one but cannot work together."""
        if (self.parallelism or 1) > self.epoch_backlog_queue_size:
            raise OptionError(
                f"epochBacklogQueueSize is {self.epoch_backlog_queue_size}, but the query has "
                f"{self.parallelism or 'at least 1'} tasks (parallelism), and all of their reports "
                f"of an epoch must fit into the queue. Raise epochBacklogQueueSize."
            )
        if self.state_memory is not None and self.state_memory < MIN_MEMORY_BYTES:
            raise OptionError(
                f"stateMemory is {self.state_memory} bytes, but a task needs at least "
                f"{MIN_MEMORY_BYTES >> 20}m to keep its state on disk. Raise it, or leave it out "
                f"to keep all state in memory."
            )
        if self.state_local_dir is not None and self.state_memory is None:
            raise OptionError(
                f"stateLocalDir is {self.state_local_dir!r}, but without stateMemory all state is "
                f"in memory and nothing is written there. Set stateMemory, such as 1g, or leave "
                f"stateLocalDir out."
            )
        if self.evaluator_memory < MIN_MEMORY_MB << 20:
            raise OptionError(
                f"evaluatorMemory is {self.evaluator_memory} bytes, but Spark's own classes need "
                f"{MIN_MEMORY_MB}m. Raise it, or leave it out for {DEFAULT_MEMORY_MB}m."
            )

    @property
    def evaluator_mb(self) -> int:
        """How many MiB of memory the process of Spark's own code may use."""
        return self.evaluator_memory >> 20

    @property
    def pace(self) -> Pace:
        return Pace(
            epoch_seconds=self.epoch.total_seconds(),
            idle_epoch_seconds=max(self.idle_epoch, self.epoch).total_seconds(),
            max_epochs_in_flight=self.max_epochs_in_flight,
            max_backlog=self.epoch_backlog_queue_size,
            register_seconds=self.register_timeout.total_seconds(),
            ready_seconds=self.ready_timeout.total_seconds(),
            publish_seconds=self.publish_interval.total_seconds(),
            stall_seconds=self.stall_timeout.total_seconds(),
        )

    @property
    def restarts(self) -> RestartPolicy:
        return RestartPolicy(self.max_restarts, self.outage_timeout.total_seconds())


def split_options(given: Mapping[str, str]) -> tuple[EngineOptions, dict[str, str]]:
    """Split the options of `write_stream` into the engine's and the sink's."""
    known = {name.lower() for info in options_of(EngineOptions) for name in (info.name, *info.also)}
    mine = {key: text for key, text in given.items() if key.lower() in known}
    rest = {key: text for key, text in given.items() if key not in mine}
    return read_options(EngineOptions, mine, of="write_stream"), rest


def task_count(
    options: EngineOptions, readers: int, stateful: bool, free: int, reserved: int = 0
) -> int:
    """Return how many tasks a run has, given the free slots, of which `reserved` must stay free."""
    if options.parallelism is not None:
        return options.parallelism
    # The tasks never end, and other jobs wait silently for a slot. Of two slots none is left: half
    # of the throughput would be a high price, so `no_slot_left` warns instead.
    spared = min(free - 1 if free > 2 else free, free - reserved)
    wanted = spared if stateful else min(spared, readers)
    return max(1, wanted)


def check_reserved(tasks: int, total: int, reserved: int, sink: str) -> None:
    """Raise OptionError if so many tasks leave too few slots for the jobs of the sink."""
    if reserved and tasks + reserved > total:
        raise OptionError(
            f"{sink}: the query has {tasks} tasks that never end and Spark has {total} task slots, "
            f"so Spark jobs over its output would wait forever. Leave a slot: give Spark more, "
            f"such as local[{tasks + reserved}], or set a lower .option('parallelism', ...)."
        )


def no_slot_left(tasks: int, total: int) -> str:
    """Return the warning that a query of so many tasks takes every slot that is free."""
    fewer = (
        f"set .option('parallelism', {tasks - 1}) for this query, or give Spark more slots"
        if tasks > 1
        else "give Spark more slots"
    )
    return (
        f"The query takes every free task slot of Spark, {tasks} in all, for as long as it runs. "
        f"Other jobs, such as spark.read...show(), then wait for a slot without a message. If you "
        f"have such jobs, {fewer}: local[{total + 1}] has one more."
    )
