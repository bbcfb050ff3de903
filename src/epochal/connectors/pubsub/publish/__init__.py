"""Encodes rows as messages and publishes them."""
