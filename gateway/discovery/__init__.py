"""Endpoints that are found while the gateway runs: by name, or by asking Kubernetes."""
