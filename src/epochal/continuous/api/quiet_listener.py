"""A query listener whose methods do nothing. Subclasses override only the events they need.

PySpark's own class requires three of its four methods.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql.streaming import StreamingQueryListener


class QuietListener(StreamingQueryListener):  # type: ignore[misc]
    """Ignores all events."""

    def onQueryStarted(self, event: Any) -> None:
        pass

    def onQueryProgress(self, event: Any) -> None:
        pass

    def onQueryIdle(self, event: Any) -> None:
        pass

    def onQueryTerminated(self, event: Any) -> None:
        pass
