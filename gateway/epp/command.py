"""The command `gateway epp`: arguments, and what starts the server. Needs the extra `epp`, and says so."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

import uvicorn

from gateway import settings
from gateway.app import build
from gateway.logs import configure
from gateway.policy.load import load_policy

PORT = 9002
NEEDED = ("grpc", "grpc_health", "envoy")
STOP_SECONDS = 2
DESCRIPTION = """\
Runs the gateway's decision as an Endpoint Picker: Envoy (Envoy Gateway, Envoy AI Gateway, Istio, GKE Inference
Gateway, llm-d) asks over gRPC which endpoint shall serve a request and carries the bytes itself. Estimates, pools,
curves, limits, health and metrics are those of `gateway serve`, from the same policy file.

The pools' endpoints are the pods: addresses (http://10.0.0.5:8000), or names that mean one pod each. Envoy must let
them be picked, so an InferencePool has to select the same pods. HTTP serves operators only: /ready, /metrics, the
status page."""
EPILOG = """\
Try it without Kubernetes: deploy/epp/envoy.yaml is a whole Envoy configuration for two local back ends.

  gateway epp --policy policy.yaml
  envoy -c deploy/epp/envoy.yaml

Envoy's filter must send the request's headers and body (FULL_DUPLEX_STREAMED, or BUFFERED with a message_timeout
above the policy's limits.queue_wait) and should send the response's (FULL_DUPLEX_STREAMED or STREAMED), from which
lengths and speeds are learned and with whose end the request stops counting. Manifests: deploy/epp/."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description, parser.epilog = DESCRIPTION, EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "--port", type=settings.port, help=f"port for Envoy's gRPC (default {PORT}; env GATEWAY_EPP_PORT)"
    )
    parser.add_argument("--http-port", help="port for operators (default 8080; env GATEWAY_PORT)", metavar="HTTP_PORT")
    parser.add_argument("--tls-cert", metavar="FILE", help="certificate chain (PEM), for data planes that speak TLS")
    parser.add_argument("--tls-key", metavar="FILE", help="its private key (PEM)")
    parser.add_argument(
        "--body-mode",
        choices=("duplex", "buffered"),
        default="duplex",
        help="how bodies come from a data plane that does not say it in the stream (default duplex)",
    )
    settings.add_arguments(parser, without=("port", "workers"))


def main(args: argparse.Namespace) -> int:
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        print(
            f"gateway: `gateway epp` needs gRPC ({', '.join(missing)} not found); pip install 'mtp-gateway[epp]'",
            file=sys.stderr,
        )
        return 1
    # Only here, so that every other command works, and starts fast, without gRPC.
    from gateway.epp.server import Listening, picking_app
    from gateway.epp.wire import BodyMode, Modes

    chosen = settings.resolve({**vars(args), "port": args.http_port, "workers": 1}, os.environ)
    if not chosen.policy:
        raise settings.InvalidSetting("--policy FILE is missing; try policies/default.yaml")
    policy = load_policy(chosen.policy, os.environ)
    mode = BodyMode.FULL_DUPLEX_STREAMED if args.body_mode == "duplex" else BodyMode.BUFFERED
    port = grpc_port(args.port, os.environ)
    how = Listening(
        f"{f'[{chosen.host}]' if ':' in chosen.host else chosen.host}:{port}",
        Modes(mode, BodyMode.FULL_DUPLEX_STREAMED if args.body_mode == "duplex" else BodyMode.STREAMED),
        read_certificate(args.tls_cert, args.tls_key),
    )
    for taken in (port, chosen.port):
        settings.check_free(chosen.host, taken)
    if chosen.state_dir:
        settings.check_folder(chosen.state_dir)
    configure(chosen.log_format, chosen.log_level)
    app, _ = picking_app(build(chosen, policy, env=os.environ, own_process=True), how)
    signal.signal(signal.SIGTERM, lambda *_: None)
    uvicorn.run(
        app,
        host=chosen.host,
        port=chosen.port,
        loop="uvloop",
        http="httptools",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=STOP_SECONDS,
    )
    return 0


def grpc_port(option: int | None, env: Mapping[str, str]) -> int:
    """Command line over environment over default. Raises InvalidSetting."""
    if option is not None:
        return option
    try:
        return settings.port(env.get("GATEWAY_EPP_PORT", str(PORT)))
    except argparse.ArgumentTypeError as error:
        raise settings.InvalidSetting(f"GATEWAY_EPP_PORT: {error}") from None


def read_certificate(certificate: str | None, key: str | None) -> tuple[bytes, bytes] | None:
    """Key and chain from their files. Raises InvalidSetting for one without the other, OSError."""
    if not certificate and not key:
        return None
    if not certificate or not key:
        raise settings.InvalidSetting("--tls-cert and --tls-key belong together")
    return Path(key).read_bytes(), Path(certificate).read_bytes()
