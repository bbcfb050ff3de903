"""Writes Delta Lake tables from continuous queries."""
