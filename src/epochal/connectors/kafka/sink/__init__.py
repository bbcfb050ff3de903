"""The Kafka sink of continuous queries: at least once, or one transaction per epoch."""
