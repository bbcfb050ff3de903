"""Kafka: consumer groups that show how far a query is, and how far it is behind."""
