"""The kit for tests: a manual clock, files in memory, files that fail on demand."""
