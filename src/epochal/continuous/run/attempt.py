"""One attempt of a run: recovers, starts the Spark job and the epochs, and ends both.

The order matters for fencing: publish the attempt, fence earlier attempts, read the logs, and only
then start tasks. An earlier attempt that is still running can then no longer decide an epoch that
this one has not seen.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeAlias

from py4j.protocol import Py4JError
from pyspark import InheritableThread, SparkContext

from epochal.checkpoint.entries import CommitLog, OffsetEntry, OffsetLog
from epochal.checkpoint.layout import COMMITS, OFFSETS, PLANNED
from epochal.checkpoint.restart import SHUFFLE_PARTITIONS
from epochal.clock import Clock
from epochal.connectors.contract import Positions, Source
from epochal.continuous.plan.pinned_plan import settle_shape
from epochal.continuous.plan.stages import ReaderPlan, readers_of, readers_of_task
from epochal.continuous.run.open_query import Opened
from epochal.continuous.run.query_settings import check_reserved, no_slot_left, task_count
from epochal.continuous.run.run_events import AttemptFailed, JobEnded
from epochal.continuous.run.take_over import pinned_partitions
from epochal.continuous.spark_job.barrier_job import (
    BarrierJob,
    check_workers,
    count_slots,
    wait_for_slots,
)
from epochal.continuous.spark_job.placement import exclude, executors
from epochal.continuous.spark_job.task_hosts import pulsing
from epochal.continuous.tasks.task_stores import StateStart
from epochal.continuous.tasks.worker import TaskAssignment, run_task
from epochal.epoch.committed import CommittedEpoch
from epochal.epoch.driver import EpochDriver, Listeners
from epochal.epoch.durable import EpochResources, Recovered, newest_attempt
from epochal.epoch.effects import ReadingHeld
from epochal.epoch.epoch_files.chain_files import StateFiles
from epochal.epoch.event_time.unit_ends import ends_of_waiting
from epochal.epoch.messages import EpochReply, EpochRequest, OneWay
from epochal.errors import HostSilentError, PubSubUnavailableError
from epochal.rpc.envelope import EndpointType
from epochal.rpc.server import Handler, RpcServer, driver_address

logger = logging.getLogger(__name__)
trace = logging.getLogger("epochal.epoch.coordinator")

EXCLUDE_SECONDS = 2.0
"""How long to wait for the cluster manager's answer. The exclusion itself is immediate."""

REPLACE_SECONDS = 15.0
"""How long a restart waits for slots that were lost. Then it runs on fewer."""
EXCLUDED_SECONDS = 5.0
"""The same once executors were excluded, which has taken `silenceTimeout` already."""

GRACE_SECONDS = 1.0
"""How long to wait for slots that a query which has just ended still occupies."""


News: TypeAlias = AttemptFailed | JobEnded | ReadingHeld


class RunAttempt:
    """The tasks and epochs of one attempt number."""

    def __init__(
        self,
        sc: SparkContext,
        opened: Opened,
        driver: EpochDriver,
        recovered: Recovered,
        positions: tuple[Positions, ...],
        post: Callable[[News], None],
    ) -> None:
        self.number, self.first_epoch = driver.attempt, recovered.first_epoch
        self.positions, self.settled = positions, recovered.settled
        offsets = recovered.offsets or (None,) * len(positions)
        self.offsets: list[str | None] = list(offsets)
        """Where the first epoch begins, as Spark logs it."""
        self._sc, self._opened, self._driver = sc, opened, driver
        self.hold, self.wake, self.limit = driver.hold, driver.wake, driver.limit
        self.finish = driver.finish
        self._recovered, self._post = recovered, post
        self.is_planned = recovered.planned is not None
        """Whether the first epoch was planned by Spark or an earlier attempt. This one ends after
        it."""
        self._readers = readers_of(positions)
        self._endpoint = endpoint_of(opened.run_id)
        self._job: BarrierJob | None = None

    def start(self) -> None:
        opened, tasks = self._opened, self._opened.tasks
        readers = [(reader.source, reader.partition) for reader in self._readers]
        starts = tuple(reader.position for reader in self._readers)
        held_at = starts if opened.plans_epochs else None
        template = None  # the driver copies the entry that there is
        if self._recovered.base is None and self._recovered.planned is None:
            partitions = {SHUFFLE_PARTITIONS: str(opened.plan.state_partitions)}
            template = OffsetEntry(1, (), conf={**opened.settings, **partitions})
        begins = bool(opened.plan.watermarks) and self._recovered.unit is None and not held_at
        self._driver.start(
            readers,
            tasks,
            template=template,
            held_at=held_at,
            unit_ends=ends_of_waiting(opened.sources, self.positions) if begins else (),
            last=opened.ends,
        )
        # Before the job: the first thing that a task does is to register.
        register_coordinator(opened.server, self._endpoint, self._driver.handle)
        number, alive = self.number, executors(self._sc)
        opened.hosts.begin(number)
        silence = opened.options.silence_timeout.total_seconds() if alive else None
        self._job = BarrierJob(
            self._sc,
            assigned(self._assignment(), self._readers, silence_seconds=silence),
            opened.hosts.wishes(tasks, alive),
            group=opened.run_id,
            description=f"continuous query {opened.options.query_name or opened.query_id}",
            on_end=lambda error: self._post(JobEnded(number, error)),
        ).start()
        logger.info(
            "query %s run %s attempt %d starts at epoch %d: %d readers on %d tasks",
            *(opened.query_id, opened.run_id, number, self.first_epoch, len(readers), tasks),
        )

    def find_silent(self) -> HostSilentError | None:
        """Return an error if tasks have become silent, and exclude the executors lost with them."""
        silent = self._opened.hosts.take_silent()
        if not silent:
            return None
        try:
            alive = executors(self._sc)
        except (Py4JError, OSError):
            alive = []
        lost = self._opened.hosts.lose(silent, self._opened.tasks, alive)
        thread = InheritableThread(target=exclude, args=(self._sc, lost), daemon=True)
        thread.start()
        thread.join(EXCLUDE_SECONDS)
        return HostSilentError(silent, lost)

    def plan(self, held: ReadingHeld) -> bool:
        """Let the next epoch be read to its planned end; return False if there is none yet."""
        return self._driver.plan(held, self._opened.next_ends(self._driver.held_at(held)))

    @property
    def is_at_boundary(self) -> bool:
        """Whether offsets express the attempt's start positions exactly."""
        pairs = zip(self._opened.sources, self.positions, strict=True)
        return all(dict(source.boundary(at)) == dict(at) for source, at in pairs)

    @property
    def is_published(self) -> bool:
        """Whether Spark's state files contain all state that the attempt starts with."""
        return self._recovered.published == self.first_epoch or not self._opened.plan.stages

    def end(self, timeout_seconds: float) -> None:
        """End tasks and epochs in any state."""
        self._opened.hosts.end()
        if self._job is not None:
            # Spark reports a job as over while its last tasks may still run. `Leave` ends them.
            self._driver.dismiss()
            self._job.cancel()
            # Before the wait, which may time out: the next attempt must not begin while this driver
            # decides epochs. Without it, tasks that still run have no effect.
            self._driver.close()
            if not self._job.end(timeout_seconds):
                logger.warning("tasks of attempt %d are still running", self.number)
        self._opened.server.unregister(self._endpoint.name)

    def _assignment(self) -> TaskAssignment:
        opened, start = self._opened, self._recovered
        return TaskAssignment(
            rpc=opened.server.address,
            endpoint=self._endpoint.name,
            run_id=opened.run_id,
            attempt=self.number,
            task=0,
            tasks=opened.tasks,
            plan=opened.plan,
            readers=(),
            first_epoch=start.first_epoch,
            state=StateStart(start.first_epoch, start.state, start.commit, start.chain),
            checkpoint=opened.files.url,
            state_conf=opened.state_conf,
            max_epochs_in_flight=opened.options.max_epochs_in_flight,
            epoch_seconds=opened.options.epoch.total_seconds(),
            evaluator_mb=opened.options.evaluator_mb,
            needs_evaluator=opened.definition.needs_evaluator,
            batch_time_ms=None if start.planned is None else start.planned.timestamp_ms or None,
        )


def prepare_attempt(
    sc: SparkContext,
    opened: Opened,
    *,
    clock: Clock,
    stopped: Callable[[], bool],
    post: Callable[[News], None],
    on_committed: Callable[[CommittedEpoch, tuple[Positions, ...]], None],
    on_acknowledged: Callable[[int, float], None] = lambda _epoch, _seconds: None,
) -> RunAttempt:
    """Publish the next attempt, finish what the last one decided, and wait for free slots."""
    # A log that is opened for writing creates its directory. `next_attempt` comes first, because it
    # raises if the checkpoint was deleted or taken.
    # The number is published before `recover` reads the logs. A driver that is behind sees it, and
    # one that decides nevertheless is found there, or loses the race for the entry.
    logged = OffsetLog(opened.files.at(OFFSETS), read_only=True)
    number = opened.next_attempt(newest_attempt(logged))
    resources = EpochResources(
        url=opened.files.url,
        offsets=OffsetLog(opened.files.at(OFFSETS)),
        commits=CommitLog(opened.files.at(COMMITS)),
        sources=opened.sources,
        sink=opened.sink,
        state=StateFiles(opened.files),
        owned=opened.guard.still_mine,
        run_id=opened.run_id,
        delays_ms=tuple(mark.delay_ms for mark in opened.plan.watermarks),
        planned=opened.files.at(PLANNED),
        watermarks_move=opened.plan.watermarks_move,
        offset_lines=opened.plan.offset_lines,
        min_batches_to_retain=opened.options.min_batches_to_retain,
        commit_version=opened.state_conf.checkpoint_format_version,
        is_stateful=bool(opened.plan.stages),
    )
    listeners = Listeners(
        push=partial(opened.server.push, endpoint_of(opened.run_id)),
        committed=on_committed,
        failed=lambda error: post(AttemptFailed(number, error)),
        held=post,
        acknowledged=on_acknowledged,
    )
    pace = opened.options.pace
    driver = EpochDriver(resources, listeners, attempt=number, clock=clock, pace=pace)
    recovered = driver.recover()
    positions = tuple(map(_with_new_partitions, opened.sources, recovered.positions))
    opened.find_ends(positions)
    _find_slots(sc, opened, sum(map(len, positions)), clock, stopped)
    check_workers(sc)
    return RunAttempt(sc, opened, driver, recovered, positions, post)


def _find_slots(
    sc: SparkContext, opened: Opened, readers: int, clock: Clock, stopped: Callable[[], bool]
) -> None:
    """Settle the number of tasks, and wait until there are slots for them."""
    seconds, first = opened.options.slot_timeout.total_seconds(), not opened.tasks
    if first:
        opened.tasks = opened.wanted_tasks = _choose_tasks(sc, opened, readers, seconds, clock)
        pinned, definition = pinned_partitions(opened.files), opened.definition
        chosen = opened.options.state_partitions or definition.state_partitions
        opened.settle_partitions(pinned or chosen or opened.tasks)
        settle_shape(opened.files, opened.plan)
    else:
        opened.tasks = _remaining_tasks(sc, opened, clock, stopped)
    wait_for_slots(sc, opened.tasks, seconds, clock, stopped)
    if first and opened.options.parallelism is None:
        slots = count_slots(sc)
        if slots.free <= opened.tasks:
            logger.warning("%s", no_slot_left(opened.tasks, slots.total))


def endpoint_of(run_id: str) -> EndpointType:
    return EndpointType(f"EpochCoordinator-{run_id}", EpochRequest, EpochReply, OneWay)


def register_coordinator(server: RpcServer, endpoint: EndpointType, handle: Handler) -> None:
    server.register(endpoint, handle)
    trace.info("Registered EpochCoordinator endpoint %s", endpoint.name)


def start_server(sc: SparkContext) -> RpcServer:
    """Start the RPC server where executors can reach the driver."""
    address = driver_address(dict(sc.getConf().getAll()))
    return RpcServer(advertised_host=address.host, bind_host=address.bind).start()


def assigned(
    base: TaskAssignment, readers: Sequence[ReaderPlan], *, silence_seconds: float | None
) -> Callable[[int], None]:
    """Return the function that each task runs; it selects its readers by the task's number.

    With `silence_seconds` the task sends pulses. On a local master there is no host to lose.
    """

    def run(task: int) -> None:
        mine = replace(base, task=task, readers=readers_of_task(readers, task, base.tasks))
        if silence_seconds is None:
            run_task(mine)
            return
        with pulsing(base.rpc, base.run_id, base.attempt, task, silence_seconds):
            run_task(mine)

    return run


def _with_new_partitions(source: Source, positions: Positions) -> Positions:
    try:
        new = source.discover(positions)
    except PubSubUnavailableError as error:
        # The tasks wait until they can read, and the watching thread looks again.
        logger.warning("looking for new partitions failed: %s", error)
        return positions
    return {**positions, **new} if new else positions


def _choose_tasks(
    sc: SparkContext, opened: Opened, readers: int, slot_seconds: float, clock: Clock
) -> int:
    options, reserved = opened.options, opened.definition.sink.slots
    stateful = bool(opened.plan.stages)
    total = count_slots(sc).total
    wanted = task_count(options, readers, stateful, total, reserved)
    check_reserved(wanted, total, reserved, opened.note.sink)
    if options.parallelism is not None:
        return wanted
    deadline = clock.monotonic() + min(GRACE_SECONDS, slot_seconds)
    while (
        possible := task_count(options, readers, stateful, count_slots(sc).free, reserved)
    ) < wanted and clock.monotonic() < deadline:
        clock.sleep(0.05)
    return min(wanted, possible)


def _remaining_tasks(
    sc: SparkContext, opened: Opened, clock: Clock, stopped: Callable[[], bool]
) -> int:
    """Return how many tasks fit on the slots, after a wait for replacements of those that are lost.

    No more than the first attempt had, and no more than that one if slots have come back.
    """
    last, wanted = opened.tasks, opened.wanted_tasks
    seconds = EXCLUDED_SECONDS if opened.hosts.has_lost else REPLACE_SECONDS
    deadline = clock.monotonic() + seconds
    while (free := count_slots(sc).free) < last and not stopped() and clock.monotonic() < deadline:
        clock.sleep(0.1)
    if free < last:
        logger.warning("of %d tasks only %d fit on the slots that are left", last, max(1, free))
    elif free > last < wanted:
        logger.info("slots have come back: %d of %d tasks run again", min(free, wanted), wanted)
    return max(1, min(wanted, free))
