"""Aggregation by key, by window and by session."""
