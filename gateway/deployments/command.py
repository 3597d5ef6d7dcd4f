"""`gateway recipe MODEL --slice NAME`: prints how to start vLLM, or what would fit instead."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

from gateway.deployments.catalog import Catalog, UnknownName, Weights, catalog
from gateway.deployments.memory import Load
from gateway.deployments.recipe import Refused, Wish, make, usual_sequences
from gateway.deployments.render import FORMS, memory_table, render
from gateway.deployments.versions import Version
from gateway.settings import number

CONTEXT = 16384
CONCURRENCY = 8
BATCHED_TOKENS = 8192
"""A speculative engine warns below."""
DEEPEST = 8
"""Draft tokens; the published figures go no further."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", nargs="?", help="E2B, E4B, 12B, 26B-A4B or 31B")
    parser.add_argument("--slice", metavar="NAME", help="1g.24gb, 2g.48gb, 4g.96gb, vgpu-25, whole-card or dgx-spark")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--plain", action="store_true", help="decode plainly, without a drafter")
    kind.add_argument(
        "--k", type=_whole(1, DEEPEST), metavar="N", help="tokens to draft per step (default: the model's own)"
    )
    parser.add_argument("--format", choices=list(FORMS), default="shell", help="what to print (default: %(default)s)")
    parser.add_argument(
        "--context", type=_whole(256), default=CONTEXT, metavar="N", help="tokens per sequence (default: %(default)s)"
    )
    parser.add_argument(
        "--concurrency", type=_whole(1), default=CONCURRENCY, metavar="N",
        help="sequences of full length to hold at once (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--max-num-seqs", type=_whole(1), metavar="N",
        help="sequences per step (default: 16 for each of --concurrency, as most are short; at most 256)",
    )  # fmt: skip
    parser.add_argument(
        "--max-num-batched-tokens", type=_whole(64), default=BATCHED_TOKENS, metavar="N",
        help="tokens per step (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--weights", choices=[*Weights], default=Weights.BF16.value, help="format of the weights (default: %(default)s)"
    )
    parser.add_argument(
        "--kv-cache", choices=["bf16", "fp8"], default="bf16", help="format of the KV cache (default: %(default)s)"
    )
    parser.add_argument("--text-only", action="store_true", help="leave out the vision and audio towers")
    parser.add_argument(
        "--share", type=_share, metavar="X", help="share of the memory that vLLM may use (default: the slice's own)"
    )
    parser.add_argument("--vllm", metavar="VERSION", help="version of vLLM (default: the newest that was checked)")
    parser.add_argument("--served-name", metavar="NAME", help="name that clients use (default: gemma-4-...)")
    parser.add_argument("--port", type=_whole(1, 65535), default=8000, help="port to serve on (default: %(default)s)")
    parser.add_argument("--checkpoint", metavar="NAME", help="your own checkpoint or folder; needs --weights-gb")
    parser.add_argument("--weights-gb", type=float, metavar="GB", help="size of its weights, in 10^9 bytes")
    parser.add_argument("--assistant", metavar="NAME", help="your own drafter")
    parser.add_argument("--no-guard", action="store_true", help="leave out the table of draft tokens by batch size")
    parser.add_argument("--list", action="store_true", help="list models and slices with their sources, and end")


def main(args: argparse.Namespace) -> int:
    """Prints a recipe. Returns 0, 1 where the model does not fit, 2 on wrong usage."""
    known = catalog()
    if args.list:
        print(_listing(known))
        return 0
    if not args.model or not args.slice:
        return _usage("MODEL and --slice are needed; `gateway recipe --list` shows what there is")
    if (args.checkpoint is None) != (args.weights_gb is None):
        return _usage("--checkpoint and --weights-gb belong together")
    try:
        wish = wish_of(args, known)
    except (UnknownName, ValueError) as error:
        return _usage(str(error))
    try:
        recipe = make(wish, known)
    except Refused as refused:
        print(f"gateway recipe: {refused.why}", file=sys.stderr)
        if refused.memory:
            print("\n".join(f"  {line}" for line in memory_table(refused.memory)), file=sys.stderr)
        would = " | ".join(refused.instead) or "nothing in the catalogue: quantise it further"
        print(f"  would do: {would}", file=sys.stderr)
        return 1
    sys.stdout.write(render(recipe, args.format))
    return 0


def wish_of(args: argparse.Namespace, known: Catalog) -> Wish:
    """What parsed options ask for. Raises UnknownName, ValueError."""
    model, place = known.model(args.model), known.slice(args.slice)
    load = Load(
        context=args.context,
        concurrency=args.concurrency,
        sequences=args.max_num_seqs or usual_sequences(args.concurrency),
        batched_tokens=args.max_num_batched_tokens,
        draft_tokens=0 if args.plain else args.k or model.depth,
        weights=Weights(args.weights),
        fp8_cache=args.kv_cache == "fp8",
        text_only=args.text_only,
        weights_gb=args.weights_gb,
    )
    return Wish(
        model=model,
        place=place,
        load=load,
        version=Version.parse(args.vllm) if args.vllm else known.engines.default,
        served_name=args.served_name or model.served_name,
        port=args.port,
        share=args.share,
        checkpoint=args.checkpoint,
        assistant=args.assistant,
        guard=not args.no_guard,
    )


def _listing(known: Catalog) -> str:
    lines = ["models"]
    for model in known.models.values():
        lines.append(
            f"  {model.name:<11}{', '.join(model.weights):<18} k={model.depth}  {' '.join(model.source.split())}"
        )
    lines.append("slices")
    for place in known.slices.values():
        lines.append(f"  {place.name:<11}{place.gib:7.2f} GiB x {place.share:g}  {' '.join(place.source.split())}")
    return "\n".join([*lines, f"overhead: {' '.join(known.overhead.source.split())}"])


def _usage(message: str) -> int:
    print(f"gateway recipe: {message}", file=sys.stderr)
    return 2


def _whole(least: int, most: int = 10**7) -> Callable[[str], int]:
    def whole(text: str) -> int:
        value = number(text)
        if not least <= value <= most or value % 1:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number in {least}..{most}")
        return int(value)

    return whole


def _share(text: str) -> float:
    value = number(text)
    if not 0.05 <= value <= 0.98:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share in 0.05..0.98")
    return value
