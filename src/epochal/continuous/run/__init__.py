"""One run of a query on the driver: start, attempts, restarts and reports."""
