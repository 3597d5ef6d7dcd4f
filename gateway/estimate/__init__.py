"""How long an answer will be: a shipped prior, the request's own words, and the history of the operator's traffic."""
