"""Tests of the recipes, and what vLLM itself says to them."""
