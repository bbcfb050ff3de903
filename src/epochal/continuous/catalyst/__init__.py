"""Reads Spark's plans: a streaming DataFrame becomes a tree of our operators."""
