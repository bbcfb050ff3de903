"""The Iceberg sink of continuous queries: one snapshot per epoch, with the epoch's number in it."""
