"""Looks after a checkpoint's health, as often as the checkpoint is small.

Each look reads what `verify` reads. A checkpoint of a hundred files is looked at every second, one
that takes seconds to read every minute: no more than a share of the time goes into looking.

What a reader would get wrong: a query writes while we read, so a file may be missing from a listing
that is there a moment later. A finding counts when a second look, soon after, finds it again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from epochal.clock import Clock
from epochal.errors import EpochalError
from epochal.files import Files
from epochal.tools.inspect.show import inspect
from epochal.tools.inspect.view_models import CheckpointView
from epochal.tools.verify.depth import Depth
from epochal.tools.verify.findings import Finding, is_healthy
from epochal.tools.verify.verify import Report, verify

logger = logging.getLogger(__name__)

QUICK_SECONDS = 0.5
NORMAL_SECONDS = 0.5
CONFIRM_SECONDS = 0.2
"""Until the second look: an epoch is committed in less."""
SHARE = 0.2
"""Of the time, at most so much is spent on looking quickly, and as much on reading everything."""
SHOWN_FINDINGS = 200


@dataclass(frozen=True, slots=True)
class Health:
    """What was found, and when."""

    checked_ms: int
    depth: str
    took_ms: int
    findings: tuple[Finding, ...] = ()
    view: CheckpointView | None = None
    problem: str | None = None
    """Why there is nothing to look at."""

    @property
    def status(self) -> str:
        """`healthy`, `unhealthy`, or `unreadable`."""
        if self.problem is not None:
            return "unreadable"
        return "healthy" if is_healthy(self.findings) else "unhealthy"

    def as_json(self) -> dict[str, Any]:
        """For the page."""
        view = self.view
        return {
            "status": self.status,
            "problem": self.problem,
            "checked_ms": self.checked_ms,
            "depth": self.depth,
            "took_ms": self.took_ms,
            "count": len(self.findings),
            "findings": [each.as_json() for each in self.findings[:SHOWN_FINDINGS]],
            "checkpoint": None if view is None else _view_json(view),
        }


class Doctor:
    """Looks at one checkpoint whenever that is due."""

    def __init__(self, files: Files, clock: Clock, look: Callable[..., Report] = verify) -> None:
        self._files, self._clock, self._look = files, clock, look
        self._due = {Depth.QUICK: 0.0, Depth.NORMAL: 0.0}
        self._quick_seconds = 0.0
        """How long the last quick look took."""
        self._deeper: tuple[Finding, ...] = ()
        """What only reading everything shows, from the last time that everything was read."""
        self.health: Health | None = None

    @property
    def due(self) -> float:
        """When the next look is due, on the monotonic clock."""
        return min(self._due.values())

    def visit(self) -> Health:
        """Look now, as deep as is due."""
        began = self._clock.monotonic()
        depth = Depth.NORMAL if self._due[Depth.NORMAL] <= began else Depth.QUICK
        try:
            findings, slept = self._confirmed(depth)
            view = inspect(self._files)
            problem = None
        except (EpochalError, OSError) as error:
            findings, slept, view, problem = (), 0.0, None, str(error)
        now = self._clock.monotonic()
        took = now - began - slept
        if depth is Depth.NORMAL:
            self._deeper = tuple(each for each in findings if each.path.startswith("state/"))
            self._due[Depth.NORMAL] = now + max(NORMAL_SECONDS, took / SHARE)
        else:
            known = {(each.code, each.path) for each in findings}
            findings += tuple(e for e in self._deeper if (e.code, e.path) not in known)
            self._quick_seconds = took
        self._due[Depth.QUICK] = now + max(QUICK_SECONDS, self._quick_seconds / SHARE)
        self.health = Health(
            self._clock.now_ms(), depth.value, round(1000 * took), findings, view, problem
        )
        return self.health

    def _confirmed(self, depth: Depth) -> tuple[tuple[Finding, ...], float]:
        """What is certain, and how much of the time was spent waiting."""
        found = self._look(self._files, depth=depth).findings
        known = self.health.findings if self.health else ()
        before = {(each.code, each.path) for each in known}
        if all((each.code, each.path) in before for each in found):
            return found, 0.0
        self._clock.sleep(CONFIRM_SECONDS)
        again = {(e.code, e.path) for e in self._look(self._files, depth=depth).findings}
        return tuple(e for e in found if (e.code, e.path) in again), CONFIRM_SECONDS


def _view_json(view: CheckpointView) -> dict[str, Any]:
    newest = view.batches[-1] if view.batches else None
    committed = [batch.batch_id for batch in view.batches if batch.committed]
    restart = view.restart
    return {
        "url": view.url,
        "query_id": view.query_id,
        "batches": len(view.batches),
        "oldest": view.batches[0].batch_id if view.batches else None,
        "newest": newest.batch_id if newest else None,
        "committed": committed[-1] if committed else None,
        "timestamp_ms": newest.timestamp_ms if newest else None,
        "watermark_ms": newest.watermark_ms if newest else None,
        "restart": {
            "action": restart.action.value,
            "batch_id": restart.batch_id,
            "reason": restart.reason,
        },
        "owner": None
        if view.owner is None
        else {"run_id": view.owner.run_id, "host": view.owner.host, "active": view.owner.has_lease},
        "operators": [
            {
                "operator_id": each.operator_id,
                "name": each.name,
                "provider": each.provider,
                "partitions": each.partitions,
                "stores": list(each.stores),
            }
            for each in view.operators
        ],
        "problems": [
            {"path": each.path, "message": each.message} for each in view.problems[:SHOWN_FINDINGS]
        ],
    }
