"""Pub/Sub source and sink for continuous queries."""
