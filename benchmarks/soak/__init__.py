"""A day in production, compressed: Kafka to keyed state to Delta, and what goes wrong."""
