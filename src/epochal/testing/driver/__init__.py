"""Runs a query in one process: the engine's own parts on files in memory and a manual clock."""
