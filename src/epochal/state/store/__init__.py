"""Versioned state stores on those files, and who holds which of them."""
