"""Reads from Pub/Sub: streaming pull, leases and acknowledgements."""
