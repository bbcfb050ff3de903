"""Structured Streaming's commit machinery, in Python, on Spark."""

__version__ = "0.1.0"

__all__ = ["__version__"]
