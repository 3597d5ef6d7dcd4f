"""`gateway explain`: the decision for one request body, with nothing sent anywhere."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from gateway import terminal
from gateway.api.core import Learned, activate
from gateway.api.explain import IdlePools, explain
from gateway.api.head import Head
from gateway.estimate.estimator import Estimator
from gateway.policy.load import load_policy
from gateway.request.tokens import TokenEstimator
from gateway.routing.state import cold_state


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--policy", required=True, metavar="FILE", help="the policy file")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("request", metavar="REQUEST.json", help="the request body; - reads standard input")


def main(args: argparse.Namespace) -> int:
    """Prints the decision, as a table or JSON. Raises PolicyInvalid, GatewayError or OSError."""
    raw = sys.stdin.buffer.read() if args.request == "-" else Path(args.request).read_bytes()
    learned = Learned(Estimator(), TokenEstimator(), cold_state())
    active = activate(load_policy(args.policy, os.environ), 1, learned.routing)
    found = explain(active, learned, IdlePools(), raw, Head())
    if args.json:
        print(json.dumps(found, ensure_ascii=False, indent=2))
    else:
        terminal.print_explanation(found)
    return 0
