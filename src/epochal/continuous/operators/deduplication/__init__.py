"""Dropping duplicate rows."""
