"""The PostgreSQL sink of continuous queries."""
