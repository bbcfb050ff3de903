"""Edits of the offset log."""
