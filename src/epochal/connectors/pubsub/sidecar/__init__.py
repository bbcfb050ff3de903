"""The process beside each executor that reads Pub/Sub for micro-batch queries."""
