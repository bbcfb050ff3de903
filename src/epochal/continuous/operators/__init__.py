"""The operators between source and sink, stateless and stateful."""
