"""A listener of queries that hears everything and does nothing: for those that want one event.

PySpark's own class leaves three of its four methods to be written.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql.streaming import StreamingQueryListener


class QuietListener(StreamingQueryListener):  # type: ignore[misc]
    """Does nothing, whatever it is told."""

    def onQueryStarted(self, event: Any) -> None:
        pass

    def onQueryProgress(self, event: Any) -> None:
        pass

    def onQueryIdle(self, event: Any) -> None:
        pass

    def onQueryTerminated(self, event: Any) -> None:
        pass
