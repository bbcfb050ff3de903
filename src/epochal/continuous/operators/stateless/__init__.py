"""Operators without state, and the expressions they evaluate."""
