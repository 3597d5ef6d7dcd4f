"""Back-end telemetry: scrapes vLLM's `/metrics`, differences the counters, judges drafting, exports the results."""
