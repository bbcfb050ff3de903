"""Aggregation by key, window and session."""
