"""A simulated vLLM: the true wire format and metrics over an engine whose step times come from speed profiles."""
