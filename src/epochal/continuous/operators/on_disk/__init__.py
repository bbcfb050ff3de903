"""State of operators that is kept on local disk."""
