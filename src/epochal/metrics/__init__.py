"""Telemetry of queries: run records, metrics, traces and logs. Nothing here runs a query."""
