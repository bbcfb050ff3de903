"""Commits the offsets that a Spark query has processed to a consumer group."""
