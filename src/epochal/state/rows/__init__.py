"""Rows of state: their types, their bytes in Spark's UnsafeRow layout, and Arrow columns."""
