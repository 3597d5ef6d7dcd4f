"""Who may come in, and how much of it: API keys and their limits."""
