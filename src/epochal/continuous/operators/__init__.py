"""What happens to rows between source and sink, stateless and stateful."""
