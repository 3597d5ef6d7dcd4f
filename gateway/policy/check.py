"""`gateway check FILE...`: every problem of every file, at once."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from typing import TextIO

from gateway.policy.describe import warnings
from gateway.policy.load import load_policy
from gateway.policy.problems import PolicyInvalid


def check(paths: Sequence[str | os.PathLike[str]], stdout: TextIO, stderr: TextIO, env: Mapping[str, str]) -> int:
    """Problems go to `stderr`, one a line. 0, and `ok` on `stdout`, if there are none; else 1. Warnings do not fail."""
    failed = False
    for path in paths:
        try:
            policy = load_policy(path, env)
        except PolicyInvalid as error:
            failed = True
            stderr.writelines(f"{problem}\n" for problem in error.problems)
        else:
            stderr.writelines(f"{policy.source}: warning: {line}\n" for line in warnings(policy))
    if failed:
        return 1
    stdout.write("ok\n")
    return 0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", metavar="FILE", help="policy files")


def main(args: argparse.Namespace) -> int:
    return check(args.files, sys.stdout, sys.stderr, os.environ)
