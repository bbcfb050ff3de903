"""Functions of texts: characters, encodings, regular expressions, JSON."""
