"""MTP gateway: sends each request to the vLLM back end, plain or MTP, that will finish it first."""

__version__ = "0.1.0"
