"""Length estimate: a shipped prior, rules on the request, and the history of the operator's own traffic."""
