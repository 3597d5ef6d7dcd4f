"""Recipes: how to start vLLM for a Gemma 4 model on a slice of a GPU, as data and as commands."""
