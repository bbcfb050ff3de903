"""Operators without state, and the expressions that they evaluate."""
