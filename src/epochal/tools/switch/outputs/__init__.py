"""Reads what two queries have written, by epoch."""
