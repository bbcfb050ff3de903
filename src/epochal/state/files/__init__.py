"""The files of a state store: deltas, snapshots, changelogs, checksums and schemas."""
