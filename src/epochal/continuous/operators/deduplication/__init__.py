"""Operators that drop duplicate rows."""
