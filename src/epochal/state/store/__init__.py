"""Versioned state stores on these files, and which process holds which store."""
