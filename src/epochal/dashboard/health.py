"""Monitors the health of a checkpoint: verifies it again and again.

A check reads what `verify` reads, so the time between checks depends on the size of the checkpoint.
A checkpoint of a hundred files is checked every second. One that takes seconds to read is checked
every minute. Checks never take more than a fixed share of the time.

Note: a query may write while a check reads, so a file may be missing from a listing and appear a
moment later. A finding counts only if a second check, shortly after, confirms it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from epochal.clock import Clock
from epochal.dashboard.query_runs import HEALTHY, MISSING, UNHEALTHY, UNREADABLE
from epochal.errors import EpochalError
from epochal.files import Files
from epochal.tools.inspect.show import inspect
from epochal.tools.inspect.view_models import CheckpointView
from epochal.tools.verify.findings import Depth, Finding, by_weight, is_healthy
from epochal.tools.verify.remedy_commands import commands_to_run
from epochal.tools.verify.verify import Report, verify

logger = logging.getLogger(__name__)

QUICK_SECONDS = 0.5
NORMAL_SECONDS = 0.5
CONFIRM_SECONDS = 0.2
"""The time between the two checks. Committing an epoch takes less."""
SHARE = 0.2
"""The share of the time spent on quick checks, and again on checks that read all files."""
SHOWN_FINDINGS = 200


@dataclass(frozen=True, slots=True)
class Health:
    url: str
    checked_ms: int
    took_ms: int
    findings: tuple[Finding, ...] = ()
    view: CheckpointView | None = None
    problem: str | None = None
    """Why the checkpoint cannot be read at all."""
    missing: bool = False
    """Whether there is no such directory."""

    @property
    def status(self) -> str:
        """`healthy`, `unhealthy`, `unreadable`, or `missing`."""
        if self.problem is not None:
            return MISSING if self.missing else UNREADABLE
        return HEALTHY if is_healthy(self.findings) else UNHEALTHY

    @property
    def problems(self) -> int:
        """The number of findings that are worse than `info`."""
        return sum(not is_healthy([finding]) for finding in self.findings)

    def as_json(self) -> dict[str, Any]:
        view = self.view
        return {
            "status": self.status,
            "problem": self.problem,
            "checked_ms": self.checked_ms,
            "took_ms": self.took_ms,
            "count": len(self.findings),
            "findings": [
                {**finding.as_json(), "commands": commands_to_run(finding.remedy, self.url)}
                for finding in by_weight(self.findings)[:SHOWN_FINDINGS]
            ],
            "checkpoint": None if view is None else _view_json(view),
        }


class HealthMonitor:
    def __init__(
        self, files: Files, clock: Clock, verify_files: Callable[..., Report] = verify
    ) -> None:
        self._files, self._clock, self._verify = files, clock, verify_files
        self._due = {Depth.QUICK: 0.0, Depth.NORMAL: 0.0}
        self._quick_seconds = 0.0
        """How long the last quick check took."""
        self._deeper: tuple[Finding, ...] = ()
        """Findings in state files, from the last check that read them."""
        self.health: Health | None = None

    @property
    def due(self) -> float:
        """When the next check is due, on the monotonic clock."""
        return min(self._due.values())

    def check(self) -> Health:
        """Check now, at the depth that is due."""
        began = self._clock.monotonic()
        depth = Depth.NORMAL if self._due[Depth.NORMAL] <= began else Depth.QUICK
        try:
            findings, slept = self._confirm(depth)
            view = inspect(self._files)
            problem, missing = None, False
        except (EpochalError, OSError, RecursionError) as error:
            findings, slept, view = (), 0.0, None
            missing = isinstance(error, FileNotFoundError) and error.filename == self._files.url
            problem = f"There is no directory {self._files.url}." if missing else str(error)
        now = self._clock.monotonic()
        took = now - began - slept
        if depth is Depth.NORMAL:
            self._deeper = tuple(
                finding for finding in findings if finding.path.startswith("state/")
            )
            self._due[Depth.NORMAL] = now + max(NORMAL_SECONDS, took / SHARE)
        else:
            # A quick check does not read state files: add what the last full check found in them.
            places = {(finding.code, finding.path) for finding in findings}
            findings += tuple(e for e in self._deeper if (e.code, e.path) not in places)
            self._quick_seconds = took
        self._due[Depth.QUICK] = now + max(QUICK_SECONDS, self._quick_seconds / SHARE)
        self.health = Health(
            self._files.url,
            self._clock.now_ms(),
            round(1000 * took),
            findings,
            view,
            problem,
            missing,
        )
        return self.health

    def _confirm(self, depth: Depth) -> tuple[tuple[Finding, ...], float]:
        """Return the confirmed findings, and the time spent waiting for the second check."""
        findings = self._verify(self._files, depth=depth).findings
        earlier = self.health.findings if self.health else ()
        before = {(finding.code, finding.path) for finding in earlier}
        # Findings of the previous check need no confirmation.
        if all((finding.code, finding.path) in before for finding in findings):
            return findings, 0.0
        self._clock.sleep(CONFIRM_SECONDS)
        again = {(e.code, e.path) for e in self._verify(self._files, depth=depth).findings}
        return tuple(e for e in findings if (e.code, e.path) in again), CONFIRM_SECONDS


def _view_json(view: CheckpointView) -> dict[str, Any]:
    newest = view.batches[-1] if view.batches else None
    committed = [batch.batch_id for batch in view.batches if batch.committed]
    restart = view.restart
    return {
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
        "operators": [
            {
                "operator_id": operator.operator_id,
                "name": operator.name,
                "provider": operator.provider,
                "partitions": operator.partitions,
                "stores": list(operator.stores),
            }
            for operator in view.operators
        ],
    }
