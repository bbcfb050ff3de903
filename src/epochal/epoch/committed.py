"""The figures of a committed epoch, for progress reports and metrics. Pure data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CommittedEpoch:
    """One committed epoch."""

    epoch: int
    started_ms: int
    cut_ms: int
    """When the next epoch was announced, so that this one ended."""
    committed_ms: int
    rows_in: tuple[int, ...]
    """Per source."""
    rows_out: int
    offsets: tuple[str, ...]
    """Per source, where the epoch ended, as Spark logs it."""
    state: tuple[tuple[int, int, int, int], ...] = ()
    """(operator, rows in total, rows updated, rows removed), over all tasks."""
    watermark_ms: int | None = None
    """None if the query has no watermark."""
    highest_ms: int | None = None
    """Highest event time seen; None if none."""
    settled: bool = True
    """Whether no later epoch closes windows, unless it has rows."""
    wal_ms: int = 0
    sink_ms: int = 0
    publish_ms: int = 0
    commit_ms: int = 0
    """Durations of the four steps: decision, sink commit, publication of state, commit log."""
    prepare_ms: int = 0
    """From the cut until the epoch was durable in all tasks."""
    state_ms: float = 0
    stage_ms: float = 0
    """Within `prepare_ms`: the slowest task's time to write state, and to stage output."""
    queue_ms: int = 0
    """How long the epoch then waited for earlier epochs."""
    dead_letters: int = 0
    """Rows that the sink refused; not in `rows_out`."""
    observed: tuple[tuple[str, bytes], ...] = ()
    """(name, buffers) of `observe`, per task with rows."""
    late_rows: tuple[tuple[int, int], ...] = ()
    """(operator, rows that it dropped as late), over all tasks."""

    @property
    def has_data(self) -> bool:
        """Whether the epoch read, wrote or changed any row."""
        return bool(
            sum(self.rows_in) or self.rows_out or any(up or gone for _, _, up, gone in self.state)
        )
