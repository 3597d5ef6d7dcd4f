"""The command `gateway epp`: arguments, and what starts the server. Needs the extra `epp`, and says so."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import uvicorn

from gateway import settings
from gateway.app import build
from gateway.logs import configure
from gateway.policy.load import load_policy

if TYPE_CHECKING:
    from gateway.epp.server import Listening

PORT = 9002
NEEDED = ("grpc", "grpc_health", "envoy")
STOP_SECONDS = 2
DESCRIPTION = """\
Runs the gateway's decision as an Endpoint Picker: Envoy (Envoy Gateway, Envoy AI Gateway, Istio, GKE Inference
Gateway, llm-d) asks over gRPC which endpoint should serve a request, and carries the bytes itself. Estimates, pools,
curves, limits, health and metrics are those of `gateway serve`, from the same policy file.

The pools' endpoints are the pods: addresses (http://10.0.0.5:8000), or names that resolve to one pod each. Envoy must
be allowed to pick them, so an InferencePool has to select the same pods. HTTP is for operators only: /ready, /metrics
and the status page."""
EPILOG = """\
To try it without Kubernetes, deploy/epp/envoy.yaml is a complete Envoy configuration for two local back ends:

  gateway epp --policy policy.yaml
  envoy -c deploy/epp/envoy.yaml

Envoy's filter must send the request's headers and body (FULL_DUPLEX_STREAMED, or BUFFERED with a message_timeout
above the policy's limits.queue_wait). It should send the response's too (FULL_DUPLEX_STREAMED or STREAMED): lengths
and speeds are learned from it, and the request counts as running until its end. Manifests: deploy/epp/."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description, parser.epilog = DESCRIPTION, EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "--port", type=settings.port, help=f"port for Envoy's gRPC (default {PORT}; env GATEWAY_EPP_PORT)"
    )
    parser.add_argument("--http-port", help="port for operators (default 8080; env GATEWAY_PORT)", metavar="HTTP_PORT")
    parser.add_argument("--tls-cert", metavar="FILE", help="certificate chain (PEM), for data planes that speak TLS")
    parser.add_argument("--tls-key", metavar="FILE", help="private key of the certificate (PEM)")
    parser.add_argument(
        "--body-mode",
        choices=("duplex", "buffered"),
        default="duplex",
        help="how a data plane sends bodies if it does not say so in the stream (default duplex)",
    )
    settings.add_arguments(parser, without=("port", "workers"))


def main(args: argparse.Namespace) -> int:
    """Serves until stopped. 1 without the extra `epp`. Raises InvalidSetting, PolicyInvalid, or OSError where it
    cannot listen."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        print(
            f"gateway: `gateway epp` needs gRPC ({', '.join(missing)} not found); pip install 'mtp-gateway[epp]'",
            file=sys.stderr,
        )
        return 1
    # Only here, so that every other command works, and starts fast, without gRPC.
    from gateway.epp.server import picking_app

    chosen = settings.resolve({**vars(args), "port": args.http_port, "workers": 1}, os.environ)
    if not chosen.policy:
        raise settings.InvalidSetting("--policy FILE is missing; try policies/default.yaml")
    policy = load_policy(chosen.policy, os.environ)
    port = grpc_port(args.port, os.environ)
    listening = _listening(args, chosen.host, port)
    for wanted in (port, chosen.port):
        settings.check_free(chosen.host, wanted)
    if chosen.state_dir:
        settings.check_folder(chosen.state_dir)
    configure(chosen.log_format, chosen.log_level)
    app, _ = picking_app(build(chosen, policy, env=os.environ, own_process=True), listening)
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


def _listening(args: argparse.Namespace, host: str, port: int) -> Listening:
    """Where and how gRPC is served. Raises InvalidSetting, OSError."""
    from gateway.epp.server import Listening
    from gateway.epp.wire import BodyMode, Modes

    duplex = args.body_mode == "duplex"
    return Listening(
        f"{f'[{host}]' if ':' in host else host}:{port}",
        Modes(
            request=BodyMode.FULL_DUPLEX_STREAMED if duplex else BodyMode.BUFFERED,
            response=BodyMode.FULL_DUPLEX_STREAMED if duplex else BodyMode.STREAMED,
        ),
        read_certificate(args.tls_cert, args.tls_key),
    )


def grpc_port(option: int | None, env: Mapping[str, str]) -> int:
    """Command line over environment over default. Raises InvalidSetting."""
    if option is not None:
        return option
    try:
        return settings.port(env.get("GATEWAY_EPP_PORT") or str(PORT))
    except argparse.ArgumentTypeError as error:
        raise settings.InvalidSetting(f"GATEWAY_EPP_PORT: {error}") from None


def read_certificate(certificate: str | None, key: str | None) -> tuple[bytes, bytes] | None:
    """Key and chain from their files; None without TLS. Raises InvalidSetting for one without the other, OSError."""
    if not certificate and not key:
        return None
    if not certificate or not key:
        raise settings.InvalidSetting("--tls-cert and --tls-key belong together")
    return Path(key).read_bytes(), Path(certificate).read_bytes()
