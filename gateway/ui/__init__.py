"""The status page at `/`, and the stream of snapshots that it and `gateway top` show."""
