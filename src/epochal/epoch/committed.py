"""What is known of an epoch once it is history: for progress reports and metrics. Pure data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CommittedEpoch:
    """One epoch that is committed."""

    epoch: int
    started_ms: int
    cut_ms: int
    """When the next epoch was announced, and this one ended."""
    committed_ms: int
    rows_in: tuple[int, ...]
    """Per source."""
    rows_out: int
    offsets: tuple[str, ...]
    """Per source, where the epoch ended, in Spark's form."""
    state: tuple[tuple[int, int, int, int], ...] = ()
    """(operator, rows in total, rows updated, rows removed), over all tasks."""
    watermark_ms: int | None = None
    """None if the query has no watermark."""
    highest_ms: int | None = None
    """Highest event time seen; None if none was."""
    wal_ms: int = 0
    sink_ms: int = 0
    publish_ms: int = 0
    commit_ms: int = 0
    """How long the decision, the sink, the state's publication and the commit log took."""
    prepare_ms: int = 0
    """From the cut until all of the epoch was durable in all tasks."""
    state_ms: float = 0
    stage_ms: float = 0
    """Of that, the slowest task's writing of state, and its staging of output."""
    queue_ms: int = 0
    """How long the epoch then waited for those before it."""

    @property
    def has_data(self) -> bool:
        """Whether anything happened in it."""
        return bool(
            sum(self.rows_in) or self.rows_out or any(up or gone for _, _, up, gone in self.state)
        )
