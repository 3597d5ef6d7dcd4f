"""What was decided, why, and how it ended: the log of decisions, and the same requests under another policy."""
