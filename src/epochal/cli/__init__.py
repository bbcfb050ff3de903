"""The `epochal` command: tables for people, `--json` for programs, exit codes for scripts."""
