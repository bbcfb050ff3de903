"""Edits of operator state."""
