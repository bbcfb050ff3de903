"""The Kafka source of continuous queries."""
