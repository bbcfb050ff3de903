"""Pub/Sub: messages that are acknowledged when, and only when, what became of them is committed."""
