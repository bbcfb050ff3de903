"""Reads operator state. These tools are read-only."""
