"""vLLM's own argument parser on our recipes, without starting an engine. Runs in vLLM's environment, not in ours:

    python -m tests.deployments.commands > recipes.jsonl
    VLLM_PYTHON tests/deployments/vllm_parser.py parse < recipes.jsonl     # parses each line; exit 1 if one is refused
    VLLM_PYTHON tests/deployments/vllm_parser.py record                    # what vllm_flags.json holds for that version

Arguments alone are checked; no model is loaded and no GPU is needed.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from importlib import import_module
from typing import Any


def parser() -> Any:
    """The parser of `vllm serve`; its module moved between releases."""
    made = import_module("vllm.utils.argparse_utils").FlexibleArgumentParser()
    for place in ("common", "launchers", "openai"):
        try:
            return import_module(f"vllm.entrypoints.{place}.cli_args").make_arg_parser(made)
        except ModuleNotFoundError:
            continue
    raise SystemExit("this vLLM keeps its command line elsewhere")


def speculative_keys() -> list[str]:
    config = import_module("vllm.config.speculative").SpeculativeConfig
    return sorted(field.name for field in dataclasses.fields(config))


def record() -> dict[str, object]:
    """Long options by whether they take a value, and the keys of --speculative-config."""
    takes_value = {
        option: action.nargs != 0
        for action in parser()._actions
        for option in action.option_strings
        if option.startswith("--")
    }
    return {
        "version": import_module("vllm").__version__,
        "switches": sorted(option for option, value in takes_value.items() if not value),
        "options": sorted(option for option, value in takes_value.items() if value),
        "speculative_config": speculative_keys(),
    }


def parse(lines: list[str]) -> int:
    """How many lines vLLM refuses: by its parser, by the keys of its SpeculativeConfig, by its check of the table."""
    takes, keys = parser(), set(speculative_keys())
    expand: Any = import_module("vllm.v1.spec_decode.dynamic.utils").build_dynamic_sd_schedule_lookup
    refused = 0
    for line in lines:
        arguments = json.loads(line)
        try:
            parsed = takes.parse_args(arguments)
            config = parsed.speculative_config or {}
            if unknown := set(config) - keys:
                raise ValueError(f"unknown in the speculative config: {unknown}")
            if table := config.get("num_speculative_tokens_per_batch_size"):
                expand(table, parsed.max_num_seqs, config["num_speculative_tokens"])
        except (SystemExit, ValueError) as error:
            refused += 1
            print(f"refused: {error}: {' '.join(arguments)}", file=sys.stderr)
    print(f"vLLM {import_module('vllm').__version__}: {len(lines)} command lines, {refused} refused")
    return refused


if __name__ == "__main__":
    if sys.argv[1:] == ["record"]:
        print(json.dumps(record()))
    elif sys.argv[1:] == ["parse"]:
        sys.exit(parse([line for line in sys.stdin if line.strip()]) > 0)
    else:
        sys.exit(__doc__)
