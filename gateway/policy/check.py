"""`gateway check FILE...`: every problem of every file, at once; `-` is standard input."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from typing import BinaryIO, TextIO

from gateway.policy.describe import warnings
from gateway.policy.load import STDIN, load_argument
from gateway.policy.problems import PolicyInvalid
from gateway.settings import InvalidSetting


def check(
    paths: Sequence[str | os.PathLike[str]], stdin: BinaryIO, stdout: TextIO, stderr: TextIO, env: Mapping[str, str]
) -> int:
    """Problems go to `stderr`, one a line. 0, and `ok` on `stdout`, if there are none; else 1. Warnings do not fail."""
    failed = False
    for path in paths:
        try:
            policy = load_argument(path, env, stdin)
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
    parser.add_argument("files", nargs="+", metavar="FILE", help="policy files; - reads standard input")


def main(args: argparse.Namespace) -> int:
    """Checks the files. Raises InvalidSetting where standard input is named twice."""
    if args.files.count(STDIN) > 1:
        raise InvalidSetting("- is standard input, which can be read once")
    return check(args.files, sys.stdin.buffer, sys.stdout, sys.stderr, os.environ)
