"""The Spark of two slots that most tests of this folder share."""

from tests.spark.conftest import nothing_left_running, spark

__all__ = ["nothing_left_running", "spark"]
