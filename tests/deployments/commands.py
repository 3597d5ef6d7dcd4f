"""Every kind of recipe, as command lines of ours: `python -m tests.deployments.commands` prints vLLM's arguments.

One JSON list a line, for tests/deployments/vllm_parser.py.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator

from gateway.deployments.catalog import catalog
from gateway.deployments.command import add_arguments, wish_of
from gateway.deployments.recipe import Recipe, make

VARIANTS: tuple[str, ...] = (
    "",
    "--plain",
    "--k 1",
    "--k 4",
    "--k 8 --no-guard",
    "--weights fp8 --kv-cache fp8",
    "--text-only --served-name gemma4_e4b --port 9190",
    "--checkpoint /models/own --weights-gb 8 --assistant /models/own-assistant",
    "--share 0.65 --max-num-seqs 64 --max-num-batched-tokens 4096",
)
"""Options besides the model and the slice."""

PLACE = "dgx-spark --concurrency 2"
"""Where every model fits."""


def recipe_for(words: list[str]) -> Recipe:
    """The recipe of a command line; raises Refused, UnknownName, ValueError. argparse exits on wrong usage."""
    parser = argparse.ArgumentParser(prog="gateway recipe")
    add_arguments(parser)
    known = catalog()
    return make(wish_of(parser.parse_args(words), known), known)


def recipes() -> Iterator[Recipe]:
    """Each model in each variant, the NVFP4 ones, and E4B on each slice."""
    known = catalog()
    for model in known.models.values():
        variants = [*VARIANTS, "--weights nvfp4"] if model.nvfp4 else VARIANTS
        for variant in variants:
            yield recipe_for(f"{model.name} --slice {PLACE} {variant}".split())
    for place in known.slices:
        yield recipe_for(["E4B", "--slice", place])


if __name__ == "__main__":
    for recipe in recipes():
        print(json.dumps(recipe.arguments))
