"""The policy file: read, checked with the place of every error, watched, and shown."""
