"""Writes to Pub/Sub: rows to messages, messages to the service."""
