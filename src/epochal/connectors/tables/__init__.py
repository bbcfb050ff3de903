"""What tables of files have in common: epochs, output modes, maintenance. See `table_sink`."""
