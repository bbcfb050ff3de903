"""Publishes a task's state in the background, when the driver orders it.

The rows of a version never change, so they are written while later epochs go on. The driver repeats
an order until all tasks have reported, because reports can be lost with a connection.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from epochal.checkpoint.layout import StoreKey
from epochal.clock import Clock
from epochal.continuous.tasks.task_stores import TaskStores
from epochal.epoch.messages import EpochStarted, StatePublished
from epochal.errors import EpochalError
from epochal.state.store.versions import FrozenVersion

logger = logging.getLogger(__name__)

AGAIN_SECONDS = 1.0
"""When to try again after a failure, and to report again if the driver repeats its order."""


@dataclass(frozen=True, slots=True)
class _Order:
    epoch: int
    floor: int
    rows: Mapping[StoreKey, FrozenVersion]


class StatePublisher(threading.Thread):
    """The thread, and the orders that wait for it."""

    def __init__(
        self,
        stores: TaskStores,
        attempt: int,
        task: int,
        report: Callable[[StatePublished], None],
        clock: Clock,
    ) -> None:
        super().__init__(name="epochal-publisher", daemon=True)
        self._stores, self._attempt, self._task = stores, attempt, task
        self._report, self._clock = report, clock
        self._orders: queue.SimpleQueue[_Order | None] = queue.SimpleQueue()
        self._ended = threading.Event()
        self._heard = self._done = -1
        self._reported = 0.0

    def hear(self, started: EpochStarted) -> None:
        """Note the order in a push of the driver, if there is one. Does not wait."""
        epoch = started.publish
        if epoch > self._heard:
            self._heard = epoch
            self._orders.put(_Order(epoch, started.floor, self._stores.rows_after(epoch)))
        elif 0 <= epoch == self._done and self._is_overdue():
            self._tell(epoch)

    def run(self) -> None:
        while (order := self._orders.get()) is not None and not self._ended.is_set():
            while not self._publish(order):
                if self._ended.wait(AGAIN_SECONDS):
                    return

    def close(self) -> None:
        """End after the store that is being written now."""
        self._ended.set()
        self._orders.put(None)

    def _publish(self, order: _Order) -> bool:
        try:
            self._stores.publish(order.epoch, order.rows, order.floor)
        except (EpochalError, OSError) as error:
            # Publication may be late: a restart needs only the epoch files.
            logger.warning("the state after epoch %d is not published: %s", order.epoch, error)
            return False
        self._done = order.epoch
        self._tell(order.epoch)
        return True

    def _is_overdue(self) -> bool:
        return self._clock.monotonic() - self._reported > AGAIN_SECONDS

    def _tell(self, epoch: int) -> None:
        self._reported = self._clock.monotonic()
        self._report(StatePublished(self._attempt, self._task, epoch))
