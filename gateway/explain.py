"""`gateway explain`: the decision for one request body, with nothing sent anywhere."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from gateway import terminal
from gateway.api.core import Learned, activate
from gateway.api.dry_run import IdlePools, explain, prompt_texts
from gateway.api.head import Head
from gateway.errors import GatewayError
from gateway.estimate.estimator import Estimator
from gateway.policy.load import STDIN, load_argument
from gateway.request.exact_tokens import TokenCounter
from gateway.request.parse import parse_body
from gateway.request.tokens import TokenEstimator
from gateway.routing.state import cold_state
from gateway.settings import InvalidSetting


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--policy", required=True, metavar="FILE", help="the policy file; - reads standard input")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("request", metavar="REQUEST.json", help="file with the request body; - reads standard input")


def main(args: argparse.Namespace) -> int:
    """Prints the decision, as a table or JSON, or what is wrong with the request. Raises PolicyInvalid,
    InvalidSetting or OSError."""
    if args.policy == args.request == STDIN:
        raise InvalidSetting("the policy and the request cannot both come on standard input")
    raw = sys.stdin.buffer.read() if args.request == STDIN else Path(args.request).read_bytes()
    learned = Learned(Estimator(), TokenEstimator(), cold_state())
    active = activate(load_argument(args.policy, os.environ, sys.stdin.buffer), 1, learned.routing)
    try:
        found = explain(active, learned, IdlePools(), raw, Head())
    except GatewayError as error:
        print(f"{args.request}: {error}", file=sys.stderr)
        return 1
    # Exact for one tokenizer: how far the estimate of `input_tokens` is to be trusted for this text.
    found["features"]["o200k_tokens"] = TokenCounter.load().count("\n".join(prompt_texts(parse_body(raw))))
    if args.json:
        print(json.dumps(found, ensure_ascii=False, indent=2))
    else:
        terminal.print_explanation(found)
    return 0
