"""The fleets that `gpu_arms` compares: cards with two engines each, and a gateway with its policy for every arm."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import yaml

from tests.benchmarks.process import Child, free_ports, python_module

MEASURED = "-measured"
"""Ends the name of an arm that starts from a profile file."""
TOLD = "-told"
"""Ends the name of an arm whose requests say how long the answer will be."""


def base(arm: str) -> str:
    """The arm's name without what is added to it."""
    return arm.removesuffix(TOLD).removesuffix(MEASURED)


@dataclass(frozen=True, slots=True)
class Card:
    """The two engines of one GPU."""

    plain: str
    mtp: str

    @classmethod
    def parse(cls, text: str) -> Card:
        """`PLAIN,MTP`. Raises argparse.ArgumentTypeError."""
        plain, comma, mtp = text.partition(",")
        if not comma:
            raise argparse.ArgumentTypeError("expected the plain and the MTP engine's address, with a comma between")
        return cls(plain, mtp)


@dataclass(frozen=True, slots=True)
class Fleet:
    """What the policies of all arms share."""

    cards: tuple[Card, ...]
    model: str
    profile: str | None
    tokens: int
    """k of the MTP engines."""
    measured: str | None = None
    """A profile file for the arms that say so."""

    def policy(self, arm: str) -> dict[str, Any]:
        """The smallest policy that routes as the arm says; all else stays at its default."""
        half = (len(self.cards) + 1) // 2
        plain, mtp = {"all-plain": (len(self.cards), 0), "all-MTP": (0, len(self.cards))}.get(
            base(arm), (half, len(self.cards) - half)
        )
        profile = self.measured if MEASURED in arm else self.profile
        about = {"profile": profile} if profile else {}
        pools: dict[str, Any] = {}
        if plain:
            pools["plain"] = {"endpoints": [card.plain for card in self.cards[:plain]], **about}
        if mtp:
            drafting = {"speculative": {"method": "mtp", "tokens": self.tokens}}
            pools["mtp"] = {"endpoints": [card.mtp for card in self.cards[-mtp:]], **drafting, **about}
        routing = {} if arm.startswith("all-") else {"routing": {"objective": base(arm)}}
        return {"version": 1, "pools": pools, "models": {self.model: {"pools": list(pools)}}, **routing}


@dataclass(frozen=True, slots=True)
class Running:
    """A gateway that answers."""

    arm: str
    port: int
    pid: int

    def get(self, path: str) -> bytes:
        """The body of a GET; empty where there is no good answer."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            body = answer.read()
        except OSError:
            return b""
        finally:
            connection.close()
        return body if answer.status == 200 else b""

    def regret(self) -> dict[str, float]:
        """Seconds saved and lost by its choices so far, by its own speed curves."""
        sums = {"saved": 0.0, "lost": 0.0}
        for line in self.get("/metrics").decode().splitlines():
            for name in sums:
                if line.startswith(f"gateway_routing_{name}_seconds_total"):
                    sums[name] += float(line.rpartition(" ")[2])
        return sums

    def drafting(self) -> list[Any]:
        """What it says of its MTP pools: acceptance, mean acceptance length, gain."""
        reports: list[Any] = json.loads(self.get("/gateway/pools") or b"{}").get("mtp", [])
        return reports


@contextmanager
def gateways(fleet: Fleet, arms: Sequence[str], folder: Path) -> Iterator[list[Running]]:
    """A gateway for each arm, with its policy and its log in the folder. Raises StartFailed."""
    with ExitStack() as stack:
        found = []
        for arm, port in zip(arms, free_ports(len(arms)), strict=True):
            path = folder / f"{arm}.yaml"
            path.write_text(yaml.safe_dump(fleet.policy(arm), sort_keys=False), "utf-8")
            argv = python_module("gateway", "serve", "--policy", str(path), "--port", str(port), "--workers", "1")
            child = stack.enter_context(Child(argv, folder / f"{arm}.log"))
            running = Running(arm, port, child.pid)
            child.wait_until(lambda running=running: bool(running.get("/ready")), 60.0)  # type: ignore[misc]
            found.append(running)
        yield found
