"""Edits the offset log."""
