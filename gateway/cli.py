"""The `gateway` command. Each verb is a thin function over a module that does the work.

Exit codes: 0 done, 1 the input or a check failed, 2 wrong usage. Errors are one clear line on stderr.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import uvicorn

from gateway import __version__, advise, demo, settings, terminal, top
from gateway.api.core import Learned, activate
from gateway.api.explain import IdlePools, explain
from gateway.api.head import Head
from gateway.app import build
from gateway.bench import command as bench_command
from gateway.decisions import command as replay_command
from gateway.deployments import command as recipe_command
from gateway.epp import command as epp_command
from gateway.errors import GatewayError
from gateway.estimate.estimator import Estimator
from gateway.exposition import shared_by_workers
from gateway.logs import configure
from gateway.policy.check import check
from gateway.policy.load import PolicyInvalid, load_policy
from gateway.request.tokens import TokenEstimator
from gateway.routing.state import cold_state
from gateway.server import ClientConnection
from gateway.sim import command as sim_command
from gateway.simulate import command as simulate_command
from gateway.tracing import exporter_of

STOP_SECONDS = 2
"""What the server itself waits for once the gateway has drained."""

Verb = Callable[[argparse.Namespace], int]
MakeVerb = Callable[..., argparse.ArgumentParser]


def main(argv: Sequence[str] | None = None) -> None:
    sys.exit(run(sys.argv[1:] if argv is None else argv))


def run(argv: Sequence[str]) -> int:
    """Runs one verb and returns the exit code; argparse itself exits with 2 on wrong usage."""
    args = parser().parse_args(argv)
    verb: Verb = args.verb
    try:
        return verb(args)
    except (PolicyInvalid, GatewayError) as error:
        print(error, file=sys.stderr)
        return 1
    except settings.InvalidSetting as error:
        print(f"gateway: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except OSError as error:
        print(f"gateway: {error.strerror or error}{f': {error.filename}' if error.filename else ''}", file=sys.stderr)
        return 1


def parser() -> argparse.ArgumentParser:
    whole = argparse.ArgumentParser(
        prog="gateway",
        description="An OpenAI-compatible gateway that sends each request to the vLLM pool, plain or MTP, "
        "that will finish it first.",
        epilog="Start with `gateway demo`: no GPU, no configuration.",
    )
    whole.add_argument("--version", action="version", version=f"mtp-gateway {__version__}")
    verbs = whole.add_subparsers(title="commands", metavar="COMMAND", required=True)

    def verb(name: str, action: Verb, help: str, description: str = "") -> argparse.ArgumentParser:
        made = verbs.add_parser(name, help=help, description=description or help[0].upper() + help[1:] + ".")
        made.set_defaults(verb=action)
        return made

    _add_running(verb)
    _add_asking(verb)
    return whole


def _add_running(verb: MakeVerb) -> None:
    """What serves, watches or measures."""
    made = verb("demo", demo.main, "see it work: simulated back ends, a short tour, then a gateway to play with")
    demo.add_arguments(made)
    made = verb("serve", _serve, "run the gateway", "Runs the gateway on a policy file, which may be edited live.")
    settings.add_arguments(made)
    made = verb("epp", epp_command.main, "pick endpoints for Envoy, which carries the bytes itself (ext-proc)")
    epp_command.add_arguments(made)
    made = verb("sim", sim_command.main, "run one simulated vLLM server")
    sim_command.add_arguments(made)
    made = verb("simulate", simulate_command.main, "policies against workloads on a virtual clock, with no GPU")
    simulate_command.add_arguments(made)
    made = verb("bench", bench_command.main, "measure back ends, or the estimator on recorded requests")
    bench_command.add_arguments(made)
    made = verb("recipe", recipe_command.main, "print how to start vLLM for a model on a slice of a GPU")
    recipe_command.add_arguments(made)
    made = verb("top", top.main, "watch a running gateway in the terminal", "The status page, for ssh.")
    top.add_arguments(made)


def _add_asking(verb: MakeVerb) -> None:
    """What answers a question and ends."""
    made = verb("check", _check, "validate policy files", "Prints every error as file:line:column: path: message.")
    made.add_argument("files", nargs="+", metavar="FILE", help="policy files")
    made = verb(
        "advise",
        advise.main,
        "say per pool whether drafting pays",
        "Reads the back ends' counters for a while; sends no requests.",
    )
    advise.add_arguments(made)
    made = verb(
        "explain",
        _explain,
        "explain the decision for a request",
        "Shows features, estimate, the expected time in each pool and the winner for one OpenAI request body. "
        "Nothing is sent anywhere: the pools count as idle.",
    )
    made.add_argument("--policy", required=True, metavar="FILE", help="the policy file")
    made.add_argument("--json", action="store_true", help="print JSON")
    made.add_argument("request", metavar="REQUEST.json", help="the request body; - reads standard input")
    made = verb(
        "replay",
        replay_command.main,
        "past decisions again under another policy",
        "Decides the requests of a decision log again under another policy: how many would go elsewhere, which, and "
        "the time that this would have gained or lost.",
    )
    replay_command.add_arguments(made)


def _serve(args: argparse.Namespace) -> int:
    chosen = settings.resolve(vars(args), os.environ)
    if not chosen.policy:
        raise settings.InvalidSetting("--policy FILE is missing; try policies/default.yaml, or `gateway demo`")
    lines = configure(chosen.log_format, chosen.log_level)
    policy = load_policy(chosen.policy, os.environ)
    # Here too, so that a mistake is one line and not one of each worker.
    exporter_of(os.environ)
    # Worker processes build their own application from the environment.
    os.environ.update({settings.env_name(name): str(getattr(chosen, name)) for name in chosen.__slots__})
    # After a graceful stop uvicorn raises the signal once more; a drained gateway has exited with 0.
    signal.signal(signal.SIGTERM, lambda *_: None)
    if chosen.workers == 1:
        _run_server(build(chosen, policy, env=os.environ, lines=lines, own_process=True), chosen)
        return 0
    with shared_by_workers(os.environ):
        _run_server("gateway.app:from_environment", chosen)
    return 0


def _run_server(app: Any, chosen: settings.Settings) -> None:
    """Serves until stopped; `app` is the application, or the name of its factory for worker processes."""
    uvicorn.run(
        app,
        factory=chosen.workers > 1,
        workers=chosen.workers,
        host=chosen.host,
        port=chosen.port,
        loop="uvloop",
        http=ClientConnection,
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=STOP_SECONDS,
    )


def _check(args: argparse.Namespace) -> int:
    return check(args.files, sys.stdout, sys.stderr, os.environ)


def _explain(args: argparse.Namespace) -> int:
    raw = sys.stdin.buffer.read() if args.request == "-" else Path(args.request).read_bytes()
    learned = Learned(Estimator(), TokenEstimator(), cold_state())
    active = activate(load_policy(args.policy, os.environ), 1, learned.routing)
    found = explain(active, learned, IdlePools(), raw, Head())
    if args.json:
        print(json.dumps(found, ensure_ascii=False, indent=2))
    else:
        terminal.print_explanation(found)
    return 0
