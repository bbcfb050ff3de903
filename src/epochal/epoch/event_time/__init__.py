"""Which event times the watermark may follow: units of rows that wait, and where they end."""
