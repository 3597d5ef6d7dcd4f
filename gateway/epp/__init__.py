"""The gateway's decision without its data path: an Endpoint Picker for Envoy (Gateway API Inference Extension)."""
