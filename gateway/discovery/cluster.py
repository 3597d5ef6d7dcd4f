"""Access to the Kubernetes API from inside a pod: its address, and the token, CA and namespace of the service account.

Tokens are renewed on disk every hour or so, so each request reads the token again, off the event loop.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import httpx

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
CONNECT_SECONDS, READ_SECONDS = 5.0, 15.0


class Unreachable(Exception):
    """The API cannot be used. The message stays the same as long as the cause does."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """Where the API is, and the folder of the service account."""

    url: str | None
    """None outside a cluster."""
    account: Path = ACCOUNT

    @classmethod
    def of(cls, env: Mapping[str, str]) -> Cluster:
        """The cluster that the environment variables of a pod name."""
        host, port = env.get("KUBERNETES_SERVICE_HOST"), env.get("KUBERNETES_SERVICE_PORT", "443")
        return cls(f"https://{f'[{host}]' if ':' in host else host}:{port}" if host else None)

    async def client(self) -> httpx.AsyncClient:
        """A client for the API. Raises Unreachable."""
        if self.url is None:
            raise Unreachable("not within a Kubernetes cluster: KUBERNETES_SERVICE_HOST is not set")
        verify = await asyncio.to_thread(self._trusted) if self.url.startswith("https:") else False
        timeout = httpx.Timeout(READ_SECONDS, connect=CONNECT_SECONDS)
        return httpx.AsyncClient(base_url=self.url, verify=verify, timeout=timeout, trust_env=False)

    async def token(self) -> str:
        """The service account's token as it is now. Raises Unreachable."""
        return await asyncio.to_thread(self._read, "token")

    async def namespace(self) -> str:
        """The pod's own. Raises Unreachable."""
        return await asyncio.to_thread(self._read, "namespace")

    def _read(self, name: str) -> str:
        try:
            return (self.account / name).read_text("utf-8").strip()
        except (OSError, UnicodeError):
            raise Unreachable(f"no {name} of a service account; the pod needs automountServiceAccountToken") from None

    def _trusted(self) -> ssl.SSLContext:
        try:
            context = ssl.create_default_context(cafile=self.account / "ca.crt")
        except (OSError, ssl.SSLError):
            raise Unreachable("no ca.crt of a service account; the pod needs automountServiceAccountToken") from None
        # On by default since Python 3.13: it refuses the CAs that many clusters make for themselves (EKS, MicroK8s).
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        return context
