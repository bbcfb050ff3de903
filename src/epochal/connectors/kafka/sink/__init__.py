"""The Kafka sink of continuous queries: plain, or one transaction per epoch."""
