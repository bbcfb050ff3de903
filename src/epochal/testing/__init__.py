"""Tools for tests: a manual clock, files in memory, files that fail on demand, local servers."""
