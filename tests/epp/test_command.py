"""`gateway epp` as a command: its port, its help, and what it says where it cannot start."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from gateway.app import build
from gateway.cli import run
from gateway.epp.command import grpc_port, read_certificate
from gateway.epp.server import Listening, picking_app
from gateway.policy.load import parse_policy
from gateway.settings import InvalidSetting, Settings, check_free
from tests.epp.dataplane import DUPLEX, one_endpoint
from tests.ports import free_port

WITHOUT_GRPC = """
import sys
sys.modules.update({"grpc": None, "grpc_health": None, "envoy": None})
from gateway.cli import run
sys.exit(run(sys.argv[1:]))
"""


def self_signed(folder: Path) -> tuple[Path, Path]:
    """Key and certificate for 127.0.0.1, made as the README has it."""
    key, certificate = folder / "tls.key", folder / "tls.crt"
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=picker"]
    names = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*made, *names], check=True, capture_output=True, timeout=60)
    return key, certificate


def test_without_grpc_there_is_one_clear_line(tmp_path: Path) -> None:
    """The extra is optional; every other command works without it."""
    policy = tmp_path / "policy.yaml"
    policy.write_text(one_endpoint(), "utf-8")
    command = [sys.executable, "-c", WITHOUT_GRPC]
    done = subprocess.run([*command, "epp", "--policy", str(policy)], capture_output=True, text=True, timeout=180)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1
    assert "pip install 'mtp-gateway[epp]'" in done.stderr
    checked = subprocess.run([*command, "check", str(policy)], capture_output=True, text=True, timeout=180)
    assert checked.returncode == 0


def test_the_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    """It says what the filter must send and shows something to try."""
    with pytest.raises(SystemExit):
        run(["epp", "--help"])
    text = capsys.readouterr().out
    for word in ("FULL_DUPLEX_STREAMED", "--port", "envoy -c", "InferencePool"):
        assert word in text


def test_a_port_that_is_taken_is_one_clear_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Said before anything runs."""
    policy = tmp_path / "policy.yaml"
    policy.write_text(one_endpoint(), "utf-8")
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        with pytest.raises(OSError, match="in use"):
            check_free("127.0.0.1", port)
        assert run(["epp", "--policy", str(policy), "--port", str(port), "--http-port", str(free_port())]) == 1
    assert capsys.readouterr().err == f"gateway: Address already in use: 127.0.0.1:{port}\n"


def test_wrong_options_are_named() -> None:
    """Ports and certificates."""
    assert grpc_port(None, {}) == 9002
    assert grpc_port(None, {"GATEWAY_EPP_PORT": "7"}) == 7
    assert grpc_port(8, {"GATEWAY_EPP_PORT": "7"}) == 8
    with pytest.raises(InvalidSetting, match="GATEWAY_EPP_PORT"):
        grpc_port(None, {"GATEWAY_EPP_PORT": "many"})
    with pytest.raises(InvalidSetting, match="belong together"):
        read_certificate("cert.pem", None)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl here")
async def test_tls_is_for_data_planes_that_speak_it(tmp_path: Path) -> None:
    """A certificate and its key are all that is needed; whoever speaks plain text gets nothing."""
    key, certificate = self_signed(tmp_path)
    gateway = build(Settings(), parse_policy(one_endpoint(), "policy.yaml", {}), env={})
    how = Listening("127.0.0.1:0", DUPLEX, read_certificate(str(certificate), str(key)))
    app, picking = picking_app(gateway, how)
    trusted = grpc.ssl_channel_credentials(certificate.read_bytes())
    async with app.router.lifespan_context(app):
        address = f"127.0.0.1:{picking.port}"
        async with grpc.aio.secure_channel(address, trusted) as channel:
            answer = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service="liveness"))
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        async with grpc.aio.insecure_channel(address) as channel:
            with pytest.raises(grpc.aio.AioRpcError, match="UNAVAILABLE"):
                await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=60)


async def test_it_serves_and_ends_on_a_signal(tmp_path: Path) -> None:
    """The process picks, answers operators, and a stop signal ends it with 0."""
    policy = tmp_path / "policy.yaml"
    policy.write_text(one_endpoint(), "utf-8")
    port, http = free_port(), free_port()
    command = [sys.executable, "-m", "gateway", "epp", "--policy", str(policy), "--port", str(port)]
    process = await asyncio.create_subprocess_exec(
        *command, "--http-port", str(http), stderr=asyncio.subprocess.PIPE, env={**os.environ, "GATEWAY_WORKERS": "3"}
    )
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            answer = await stub.Check(
                health_pb2.HealthCheckRequest(service="readiness"), wait_for_ready=True, timeout=60
            )
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        reader, writer = await asyncio.open_connection("127.0.0.1", http)
        writer.write(b"GET /ready HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        assert b"200 OK" in await reader.read()
        writer.close()
    finally:
        process.send_signal(signal.SIGTERM)
        _, errors = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0, errors.decode()
    assert b"Traceback" not in errors
