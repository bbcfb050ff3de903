"""How results are printed: tables, text, JSON, progress."""
