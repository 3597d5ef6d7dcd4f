"""The endpoint picker, spoken to as Envoy does."""
