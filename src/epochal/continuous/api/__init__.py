"""The classes that users call: readers, writers, streams and query handles."""
