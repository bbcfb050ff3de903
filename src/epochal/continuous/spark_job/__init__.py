"""The Spark job of a query: one barrier task per slot, and where each task runs."""
