"""The `gateway` command: a table of verbs, each a module with `add_arguments` and `main`, imported when asked for.

Exit codes: 0 done, 1 the input or a check failed, 2 wrong usage. Errors are one clear line on stderr.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NamedTuple

from gateway import __version__
from gateway.errors import GatewayError
from gateway.policy.problems import PolicyInvalid
from gateway.settings import InvalidSetting


class Verb(NamedTuple):
    """A command, the module that runs it, and what its help says."""

    name: str
    module: str
    help: str
    description: str = ""


VERBS = (
    Verb("demo", "gateway.demo", "see it work: simulated back ends, a short tour, then a gateway to play with"),
    Verb(
        "serve",
        "gateway.serve",
        "run the gateway",
        "Runs the gateway under a policy file, which may be edited while it runs.",
    ),
    Verb("epp", "gateway.epp.command", "pick endpoints for an Envoy that carries the bytes itself (ext-proc)"),
    Verb("sim", "gateway.sim.command", "run one simulated vLLM server"),
    Verb("simulate", "gateway.simulate.command", "play policies against workloads on a virtual clock, without a GPU"),
    Verb("bench", "gateway.bench.command", "measure back ends, or the estimator on recorded requests"),
    Verb("recipe", "gateway.deployments.command", "print the command that starts vLLM for a model on a slice of a GPU"),
    Verb(
        "top", "gateway.top", "watch a running gateway in the terminal", "Shows the status page in a terminal, for ssh."
    ),
    Verb(
        "check",
        "gateway.policy.check",
        "validate policy files",
        "Validates policy files and prints every error as file:line:column: path: message.",
    ),
    Verb(
        "advise",
        "gateway.advise",
        "tell for each pool whether drafting pays",
        "Reads the back ends' counters for a while and tells for each pool whether drafting pays, and which k to run. "
        "Sends no requests.",
    ),
    Verb(
        "explain",
        "gateway.explain",
        "explain the decision for a request",
        "Shows features, estimate, the expected time in each pool and the winner for one OpenAI request body. "
        "Nothing is sent anywhere, and the pools count as idle.",
    ),
    Verb(
        "replay",
        "gateway.decisions.command",
        "make past decisions again under another policy",
        "Decides the requests of a decision log again under another policy, and tells how many would go elsewhere, "
        "which, and how much time that would have gained or lost.",
    ),
)


def main(argv: Sequence[str] | None = None) -> None:
    """The console script: runs the command line (by default this process's) and exits with its code."""
    _open_streams()
    sys.exit(run(sys.argv[1:] if argv is None else argv))


def _open_streams() -> None:
    """Lets every verb read and write its streams, whatever the process was started with.

    A closed one becomes the null device, and what a locale's encoding lacks is written as an escape.
    """
    sys.stdin = sys.stdin or open(os.devnull, encoding="utf-8")  # noqa: SIM115 - it lasts as long as the process
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name) or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
        setattr(sys, name, stream)


def run(argv: Sequence[str]) -> int:
    """Runs one verb and returns the exit code. Raises SystemExit on wrong usage and for `--help`, as argparse does."""
    args, unknown = parser(next((word for word in argv if not word.startswith("-")), "")).parse_known_args(argv)
    if unknown:
        # The verb's own usage, which argparse would not show for these.
        args.refuse(f"unrecognized arguments: {' '.join(unknown)}{_meant(args, unknown[0])}")
    try:
        code: int = args.verb(args)
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever reads the output has seen enough, as `| head` does.
        _drop_output()
        return 1
    except (PolicyInvalid, GatewayError) as error:
        print(error, file=sys.stderr)
        return 1
    except InvalidSetting as error:
        print(f"gateway: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except OSError as error:
        print(f"gateway: {error.strerror or error}{f': {error.filename}' if error.filename else ''}", file=sys.stderr)
        _drop_output()
        return 1
    return code


def _drop_output() -> None:
    """Discards output that cannot be written, about which Python would complain once more at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _meant(args: argparse.Namespace, word: str) -> str:
    """`gateway serve FILE` names a policy, as `gateway check FILE` does."""
    lone = not word.startswith("-") and getattr(args, "policy", "") is None
    return f"; did you mean --policy {word}?" if lone else ""


def parser(only: str | None = None) -> argparse.ArgumentParser:
    """The command line. With `only`, no other verb's options are known, and no other verb's module is imported."""
    whole = argparse.ArgumentParser(
        prog="gateway",
        description="An OpenAI-compatible gateway that sends each request to the vLLM pool, plain or MTP, "
        "that will finish it first.",
        epilog="Start with `gateway demo`: it needs no GPU and no configuration.",
    )
    whole.add_argument("--version", action="version", version=f"mtp-gateway {__version__}")
    verbs = whole.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for verb in VERBS:
        described = verb.description or verb.help[0].upper() + verb.help[1:] + "."
        made = verbs.add_parser(verb.name, help=verb.help, description=described)
        if only is None or only == verb.name:
            module = import_module(verb.module)
            module.add_arguments(made)
            made.set_defaults(verb=module.main, refuse=made.error)
    return whole
