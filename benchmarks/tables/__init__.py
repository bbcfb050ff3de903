"""How soon rows are visible in tables, and what commits cost when a table has a history."""
