"""What queries tell of themselves: records, metrics, traces and logs. Nothing here runs a query."""
