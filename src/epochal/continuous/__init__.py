"""The continuous engine: a never-ending Spark job of Python tasks that commits by epochs."""

from epochal.continuous.operators.windows import session, sliding, tumbling

__all__ = ["session", "sliding", "tumbling"]
