"""The Spark job under a query: one barrier task per slot, and where each one runs."""
