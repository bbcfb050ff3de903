"""Pub/Sub source and sink: a message is acknowledged only after its results are committed."""
