"""Functions of dates, timestamps and intervals, in Java's calendar and time zones."""
