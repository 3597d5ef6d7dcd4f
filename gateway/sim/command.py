"""The command `gateway sim`: options, and running one server until it is told to stop."""

from __future__ import annotations

import argparse
import signal
import sys
from contextlib import suppress

import uvicorn

from gateway.profiles import UnknownProfile, builtin_catalog
from gateway.settings import check_free, port
from gateway.sim.faults import Faults
from gateway.sim.server import create_app
from gateway.sim.settings import SimSettings

DESCRIPTION = """\
Runs one simulated vLLM server: the real wire format, streams and /metrics, with answers made of stock sentences and
step times from a speed profile, without a GPU or weights. A plain and an MTP server to put behind the gateway:

  gateway sim --port 9001 --served-name gemma-4-e4b
  gateway sim --port 9002 --served-name gemma-4-e4b --speculative mtp --k 2

Faults can be switched on and off while it runs:

  curl -d '{"freeze": true}' -H 'content-type: application/json' http://127.0.0.1:9001/sim/faults
  curl -d '{}' -H 'content-type: application/json' http://127.0.0.1:9001/sim/faults      # healthy again
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options to its parser."""
    parser.description = DESCRIPTION
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    default = SimSettings()
    serving = parser.add_argument_group("serving")
    serving.add_argument("--host", default=default.host, help="address to listen on (%(default)s)")
    serving.add_argument("--port", type=port, default=default.port, help="port to listen on (%(default)s)")
    serving.add_argument(
        "--model", default=default.model, help="model to play; its size selects the speed (%(default)s)"
    )
    serving.add_argument(
        "--served-name",
        action="append",
        default=[],
        metavar="NAME",
        help="name that clients use instead of --model; repeat for aliases",
    )
    serving.add_argument("--api-key", help="require this bearer token under /v1, as vLLM does")
    serving.add_argument(
        "--shutdown-timeout",
        type=int,
        default=default.shutdown_timeout,
        metavar="SECONDS",
        help="time that running requests get after SIGTERM (%(default)s)",
    )
    _speed_arguments(parser, default)
    _engine_arguments(parser, default)


def _speed_arguments(parser: argparse.ArgumentParser, default: SimSettings) -> None:
    speed = parser.add_argument_group("speed")
    speed.add_argument(
        "--speculative",
        choices=["none", "mtp"],
        default="none",
        help="mtp drafts --k tokens per step, refuses min_p and logit_bias, exports vllm:spec_decode_* (%(default)s)",
    )
    speed.add_argument("--k", type=int, default=2, help="draft tokens per step with --speculative mtp (%(default)s)")
    names = ", ".join(builtin_catalog().hardware())
    speed.add_argument(
        "--profile",
        default=default.profile,
        metavar="NAME",
        help=f"hardware to play: {names}; or hardware and model, such as h200/26b-a4b (%(default)s)",
    )
    speed.add_argument("--architecture", choices=["dense", "moe"], help="needed if the model's name does not say it")
    speed.add_argument(
        "--time-scale",
        type=float,
        default=default.time_scale,
        metavar="X",
        help="simulated seconds per real second: 10 runs ten times as fast (%(default)s)",
    )
    speed.add_argument(
        "--seed", type=int, default=default.seed, help="the same seed gives the same answers (%(default)s)"
    )


def _engine_arguments(parser: argparse.ArgumentParser, default: SimSettings) -> None:
    engine = parser.add_argument_group("engine, named like vLLM's own options")
    engine.add_argument(
        "--max-model-len", type=int, default=default.max_model_len, help="context length in tokens (%(default)s)"
    )
    engine.add_argument(
        "--max-num-seqs", type=int, default=default.max_num_seqs, help="sequences per step (%(default)s)"
    )
    engine.add_argument(
        "--max-num-batched-tokens",
        type=int,
        default=default.max_num_batched_tokens,
        help="tokens per step, prompts included (%(default)s)",
    )
    engine.add_argument(
        "--kv-tokens", type=int, default=default.kv_tokens, help="size of the KV cache in tokens (%(default)s)"
    )
    engine.add_argument(
        "--max-num-queued-reqs",
        type=int,
        metavar="N",
        help="answer 503 above N requests in the engine (no limit)",
    )
    engine.add_argument(
        "--enable-per-request-metrics", action="store_true", help="add `metrics` to answers, drafting included"
    )
    engine.add_argument("--enable-prompt-tokens-details", action="store_true", help="report cached_tokens in usage")
    engine.add_argument(
        "--enable-force-include-usage", action="store_true", help="put usage on every chunk of every stream"
    )
    engine.add_argument("--enable-request-id-headers", action="store_true", help="echo X-Request-Id")
    engine.add_argument(
        "--fault",
        action="append",
        default=[],
        metavar="NAME[=VALUE]",
        help=f"start with a fault, such as status=503 or cut=5; repeatable: {', '.join(Faults().as_dict())}",
    )


def settings_of(args: argparse.Namespace) -> SimSettings:
    """The settings that parsed options mean. Raises ValueError with a line for the user."""
    faults = dict(text.partition("=")[::2] for text in args.fault)
    return SimSettings(
        model=args.model,
        served_names=tuple(args.served_name),
        host=args.host,
        port=args.port,
        k=args.k if args.speculative == "mtp" else 0,
        profile=args.profile,
        architecture=args.architecture,
        seed=args.seed,
        time_scale=args.time_scale,
        max_model_len=args.max_model_len,
        max_num_seqs=args.max_num_seqs,
        max_num_batched_tokens=args.max_num_batched_tokens,
        kv_tokens=args.kv_tokens,
        max_num_queued_reqs=args.max_num_queued_reqs,
        api_key=args.api_key,
        per_request_metrics=args.enable_per_request_metrics,
        prompt_tokens_details=args.enable_prompt_tokens_details,
        force_include_usage=args.enable_force_include_usage,
        request_id_headers=args.enable_request_id_headers,
        shutdown_timeout=args.shutdown_timeout,
        faults=Faults.parse(faults),
    )


def run(settings: SimSettings) -> None:
    """Serves until SIGINT or SIGTERM. Raises UnknownProfile, ValueError or OSError before anything listens."""
    app = create_app(settings)
    check_free(settings.host, settings.port)
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        timeout_keep_alive=5,
        timeout_graceful_shutdown=settings.shutdown_timeout,
        access_log=False,
        log_level="warning",
        server_header=True,
    )
    kind = f"mtp, k={settings.k}" if settings.k else "plain"
    # After a graceful stop uvicorn raises the signal once more; a server that was asked to stop exits with 0.
    signal.signal(signal.SIGTERM, lambda *_: None)
    with config.bind_socket() as listener, suppress(KeyboardInterrupt):
        print(
            f"simulated vLLM ({kind}, {settings.profile}) serves {', '.join(settings.names)} "
            f"on http://{settings.host}:{listener.getsockname()[1]}/v1",
            file=sys.stderr,
        )
        uvicorn.Server(config).run(sockets=[listener])


def main(args: argparse.Namespace) -> int:
    """Runs `gateway sim`. 2 where the options do not work together."""
    try:
        settings = settings_of(args)
        if args.speculative == "mtp" and settings.k == 0:
            raise ValueError("--speculative mtp needs --k of at least 1")
        run(settings)
    except (ValueError, UnknownProfile) as error:
        print(f"gateway sim: {error}", file=sys.stderr)
        return 2
    return 0
