"""The HTTP surface: a request from its first byte to its `Outcome`, and the operators' routes."""
