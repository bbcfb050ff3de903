"""Reads Pub/Sub: streaming pull, leases and acknowledgements."""
