"""Commands around the upgrade of a query."""
