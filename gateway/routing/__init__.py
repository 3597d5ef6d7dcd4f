"""Which pool takes a request: gates, rules, learned speed curves, and what was learned from the choices."""
