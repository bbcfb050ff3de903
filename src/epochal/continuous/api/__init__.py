"""What users call: readers, writers, streams and query handles."""
