"""Pub/Sub source and sink of continuous queries."""
