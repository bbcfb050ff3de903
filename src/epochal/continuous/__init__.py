"""The continuous engine: a never-ending Spark job of Python tasks that commits by epochs."""
