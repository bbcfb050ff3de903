"""The continuous engine: a Spark job of long-running Python tasks that commits by epochs."""

from __future__ import annotations

from epochal.continuous.operators.windows import session, sliding, tumbling

__all__ = ["session", "sliding", "tumbling"]


def __dir__() -> list[str]:
    """List the public names, not the helpers of this module."""
    return sorted([*__all__, *(name for name in globals() if name.startswith("__"))])
