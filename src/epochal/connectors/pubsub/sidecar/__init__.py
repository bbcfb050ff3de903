"""The sidecar process of each executor, which reads Pub/Sub for micro-batch queries."""
