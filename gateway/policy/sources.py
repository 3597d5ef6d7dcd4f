"""Where a pool's endpoints come from when the policy does not list them: a name of the DNS, or pods of Kubernetes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, SecretStr

from gateway.policy.sections import Endpoint, Section
from gateway.policy.values import Count, Slug, Text, wrong

Family = Literal["any", "ipv4", "ipv6"]
DEFAULT_REFRESH = 10.0


def _selector(value: str) -> str:
    if any(char in value for char in "&?#") or not all(part.strip() for part in value.split(",")):
        raise wrong("expected a label selector such as app=vllm,mtp=yes")
    return value


class Pods(Section):
    """Ready pods, from the Kubernetes API. Plain HTTP only, as no certificate is for a pod's address."""

    selector: Annotated[Text, AfterValidator(_selector)]
    """As `kubectl get pods --selector` takes it; commas within `in (a,b)` are fine."""
    namespace: Slug | None = None
    """None: the gateway's own."""
    port: Annotated[Count, Field(le=65535)]

    def __str__(self) -> str:
        return f"pods {self.selector}" + (f" in {self.namespace}" if self.namespace else "")


@dataclass(frozen=True, slots=True)
class DnsName:
    """Every address of a DNS name, resolved again and again."""

    url: str
    """As an endpoint's URL; its host is the name."""
    refresh: float = DEFAULT_REFRESH
    """Seconds from one answer to the next query."""
    family: Family = "any"

    def __str__(self) -> str:
        return self.url


Where = DnsName | Pods


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One entry of a pool's `endpoints` that stands for as many endpoints as are found there."""

    where: Where
    weight: float = 1.0
    """Of each endpoint found; so are the rest."""
    api_key: SecretStr | None = None
    slice: str | None = None


class FoundEndpoint(Endpoint):
    """An endpoint that a source has found; no policy file lists it."""

    host: str | None = None
    """The name that was resolved to the address in `url`; for the Host header and for the certificate."""
