"""What the httpx connector promises beyond the common part."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
from pathlib import Path

import httpx
import pytest

from gateway.errors import ConnectFailed, GatewayError
from gateway.upstream.client import Timeouts
from gateway.upstream.connect import connect
from gateway.upstream.httpx_client import HttpxConnector, translate
from gateway.upstream.lean import LeanConnector
from tests.answers import text
from tests.stub import Stub
from tests.upstream.exchange import fetch, send


def subclasses(kind: type[httpx.TransportError]) -> set[type[httpx.TransportError]]:
    return {kind}.union(*(subclasses(sub) for sub in kind.__subclasses__()))


def test_every_transport_error_is_translated() -> None:
    """Each of httpx's transport errors becomes one of ours, with the status that a client should see."""
    codes = {kind.__name__: translate(kind("x")).code for kind in subclasses(httpx.TransportError)}

    assert codes == {
        "TransportError": "connection_lost",
        "TimeoutException": "upstream_timeout",
        "ConnectTimeout": "upstream_timeout",
        "ReadTimeout": "upstream_timeout",
        "WriteTimeout": "upstream_timeout",
        "PoolTimeout": "nothing_available",
        "NetworkError": "connection_lost",
        "ConnectError": "connect_failed",
        "ReadError": "connection_lost",
        "WriteError": "connection_lost",
        "CloseError": "connection_lost",
        "ProxyError": "connect_failed",
        "UnsupportedProtocol": "connect_failed",
        "ProtocolError": "connection_lost",
        "LocalProtocolError": "bad_upstream_response",
        "RemoteProtocolError": "connection_lost",
    }


def test_every_error_of_the_lower_library_is_httpx_s() -> None:
    """httpx maps all of httpcore's errors to transport errors, so the table above is complete."""
    from httpx._transports.default import _load_httpcore_exceptions

    for mapped in _load_httpcore_exceptions().values():
        assert isinstance(translate(mapped("x")), GatewayError)  # type: ignore[arg-type]


async def test_limits_are_all_set(stub: Stub) -> None:
    """TIMEOUT-01: each of httpx's phases has a limit of ours or none, never the library's 5 s."""
    seen: list[object] = []

    class Transport(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            seen.append(request.extensions["timeout"])
            return httpx.Response(200, stream=httpx.ByteStream(b""))

    connector = HttpxConnector(stub.url)
    connector._client._transport = Transport()
    await fetch(connector, timeouts=Timeouts(connect=1, first_byte=2, idle=3))

    assert seen == [{"connect": 1, "write": 3, "read": None, "pool": None}]


async def test_cookies_are_not_kept(stub: Stub) -> None:
    """HEADER-05: a cookie that the back end sets for one client is not sent with another's request."""
    stub.answer = text(b"", headers=[("set-cookie", "a=b; Path=/")])
    connector = HttpxConnector(stub.url)

    await fetch(connector)
    await fetch(connector)

    await connector.aclose()
    assert b"cookie" not in stub.requests[1].names()
    assert len(connector._client.cookies.jar) == 0


async def test_proxy_of_the_environment_only_when_trusted(stub: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy variable in the environment is not followed unless the policy says so."""
    async with Stub(text(b"from the proxy")) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        monkeypatch.delenv("NO_PROXY", raising=False)
        monkeypatch.delenv("no_proxy", raising=False)

        direct = connect(stub.url, via="httpx")
        assert (await fetch(direct)).body == b'{"ok":true}'
        through = connect(stub.url, trust_env=True)
        assert (await fetch(through, target=b"/v1/models")).body == b"from the proxy"

        assert proxy.requests[0].target == stub.url.encode() + b"/v1/models"
        await direct.aclose()
        await through.aclose()


async def test_sending_after_the_close(stub: Stub) -> None:
    """A closed connector fails as a connection does."""
    connector = HttpxConnector(stub.url)
    await connector.aclose()

    with pytest.raises(ConnectFailed):
        await send(connector)


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that signs itself, and its key."""
    return certificate_for("IP:127.0.0.1", tmp_path)


def certificate_for(subject: str, tmp_path: Path) -> tuple[Path, Path]:
    if shutil.which("openssl") is None:
        pytest.skip("no openssl to make a certificate with")
    chain, key = tmp_path / "chain.pem", tmp_path / "key.pem"
    options = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=stub"
    command = ["openssl", *options.split(), "-addext", f"subjectAltName={subject}"]
    subprocess.run([*command, "-keyout", key, "-out", chain], check=True, capture_output=True)
    return chain, key


@pytest.mark.parametrize("http2", [False, True])
async def test_tls(certificate: tuple[Path, Path], http2: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """An https endpoint is verified against its bundle, or the one that SSL_CERT_FILE names, and refused without."""
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    chain, key = certificate
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(chain, key)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(65536):
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi")
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context) as server:
        url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        trusting = connect(url, verify=str(chain), http2=http2)
        for _ in range(2):
            assert (await fetch(trusting)).body == b"hi"
        assert trusting.statistics().opened == 1
        await trusting.aclose()

        strict = connect(url)
        with pytest.raises(ConnectFailed):
            await send(strict)
        await strict.aclose()

        monkeypatch.setenv("SSL_CERT_FILE", str(chain))
        told = connect(url, http2=http2)
        assert (await fetch(told)).body == b"hi"
        await told.aclose()


async def test_the_name_behind_an_address_is_asked_for(tmp_path: Path) -> None:
    """An address that was found by name is verified as that name, which `Host` says too; as itself it is refused."""
    chain, key = certificate_for("DNS:vllm.models", tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(chain, key)
    asked: list[str] = []
    heads: list[bytes] = []
    context.sni_callback = lambda _socket, name, _context: asked.append(name)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi")
        await reader.read()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context) as server:
        port = server.sockets[0].getsockname()[1]
        named = connect(f"https://127.0.0.1:{port}", host="vllm.models", verify=str(chain))
        assert (await fetch(named)).body == b"hi"
        await named.aclose()
        nameless = connect(f"https://127.0.0.1:{port}", verify=str(chain))
        with pytest.raises(ConnectFailed):
            await send(nameless)
        await nameless.aclose()

    assert asked[0] == "vllm.models"
    assert heads[0].lower().count(b"\r\nhost:") == 1
    assert f"host: vllm.models:{port}\r\n".encode() in heads[0].lower()


@pytest.mark.parametrize(
    ("url", "options", "kind"),
    [
        ("http://vllm-0:9190", {}, LeanConnector),
        ("http://[::1]:9190/path/", {}, LeanConnector),
        ("http://vllm-0", {"via": "httpx"}, HttpxConnector),
        ("http://vllm-0", {"trust_env": True}, HttpxConnector),
        ("https://vllm-0", {}, HttpxConnector),
    ],
)
async def test_choice_of_the_connector(url: str, options: dict[str, object], kind: type) -> None:
    """Plain HTTP takes the lean connector, all else httpx."""
    assert isinstance(connect(url, **options), kind)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("vllm-0:9190", {}),
        ("ftp://vllm-0", {}),
        ("http://", {}),
        ("http://user:secret@vllm-0", {}),
        ("http://vllm-0/?a=b", {}),
        ("http://vllm-0:99999", {}),
        ("https://vllm-0", {"via": "lean"}),
    ],
)
def test_url_that_is_none(url: str, options: dict[str, object]) -> None:
    """A wrong URL is a ValueError that doesn't repeat a password."""
    with pytest.raises(ValueError, match=r"URL|port|lean|Port") as error:
        connect(url, **options)  # type: ignore[arg-type]

    assert "secret" not in str(error.value)
