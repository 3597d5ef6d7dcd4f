"""Pages as vLLM writes them, a clock that is set, and pools as telemetry sees them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from gateway.telemetry.checklist import MtpChecklist
from gateway.telemetry.spec_decode import Acceptance, acceptance, counts_of
from gateway.telemetry.tpot import Comparison
from gateway.telemetry.view import TelemetryView
from gateway.telemetry.vllm import PageReader, Snapshot
from gateway.types import PoolKind, SpecSample


class Clock:
    """Seconds that only a test moves."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


@dataclass
class FakeEndpoint:
    url: str
    api_key: bytes | None = None
    in_flight: int = 0
    held: int = 0


@dataclass(frozen=True)
class FakeTelemetry:
    interval: float | None = 1.0
    stale_after: float = 10.0


@dataclass(frozen=True)
class FakeSpeculative:
    tokens: int


@dataclass(frozen=True)
class FakePoolPolicy:
    telemetry: FakeTelemetry = FakeTelemetry()
    speculative: FakeSpeculative | None = None
    model: str | None = None


@dataclass
class FakePool:
    name: str
    endpoints: list[FakeEndpoint]
    policy: FakePoolPolicy = field(default_factory=FakePoolPolicy)

    @property
    def kind(self) -> PoolKind:
        return PoolKind.MTP if self.policy.speculative else PoolKind.PLAIN


@dataclass
class FakePools:
    pools: list[FakePool]

    def __iter__(self) -> Iterator[FakePool]:
        return iter(self.pools)


@dataclass(frozen=True)
class FakeModel:
    name: str
    pools: tuple[str, ...]


@dataclass(frozen=True)
class FakeMtp:
    acceptance_alert: float = 0.25
    tail_alert: float = 0.15
    gain_target: float = 0.10
    window: float = 600.0


def pool(name: str, *urls: str, k: int = 0, interval: float | None = 1.0, stale_after: float = 10.0) -> FakePool:
    policy = FakePoolPolicy(FakeTelemetry(interval, stale_after), FakeSpeculative(k) if k else None)
    return FakePool(name, [FakeEndpoint(url) for url in urls], policy)


@dataclass
class Rig:
    """A view and a checklist over fake pools, fed by hand."""

    pools: FakePools
    clock: Clock
    view: TelemetryView
    checklist: MtpChecklist
    reader: PageReader = field(default_factory=PageReader)

    def page(self, url: str, text: str, own: int = 0) -> None:
        self.view.accept(url, self.reader.read(text.encode(), self.clock()), own)


def rig(*pools: FakePool, model: str = "e4b", window: float = 600.0) -> Rig:
    """All pools serve one model."""
    clock, mine = Clock(), FakePools(list(pools))
    view = TelemetryView(mine, lambda: [FakeModel(model, tuple(p.name for p in mine))], clock)
    checklist = MtpChecklist(view, lambda: FakeMtp(window=window), clock)
    view.match()
    return Rig(mine, clock, view, checklist)


def engine(model: str = "e4b", rank: str = "0", /, **values: float | tuple[float, ...]) -> str:
    """One engine's lines: vLLM names without the prefix, a tuple for a counter by position."""
    lines = []
    for name, value in values.items():
        labels = f'engine="{rank}",model_name="{model}"'
        if isinstance(value, tuple):
            lines += [f'vllm:{name}{{{labels},position="{i}"}} {v}' for i, v in enumerate(value)]
        else:
            lines.append(f"vllm:{name}{{{labels}}} {value}")
    return "\n".join(lines) + "\n"


def drafting(steps: float, *rates: float, **more: float) -> str:
    """An engine that has made `steps` drafts, accepted at these unconditional rates, and is running one request."""
    at = tuple(round(steps * rate, 6) for rate in rates)
    return engine(
        num_requests_running=more.pop("running", 1.0),
        num_requests_waiting=more.pop("waiting", 0.0),
        spec_decode_num_drafts_total=steps,
        spec_decode_num_draft_tokens_total=steps * len(rates),
        spec_decode_num_accepted_tokens_total=sum(at),
        spec_decode_num_accepted_tokens_per_pos_total=at,
        **more,
    )


def read(text: str, at: float = 0.0) -> Snapshot:
    return PageReader().read(text.encode(), at)


def accepted(*rates: float, drafts: float = 1000.0) -> Acceptance:
    """With these unconditional rates by position."""
    found = acceptance(
        counts_of(SpecSample(drafts, drafts * len(rates), drafts * sum(rates), tuple(drafts * rate for rate in rates)))
    )
    assert found is not None
    return found


def gain(value: float, error: float = 0.005) -> Comparison:
    """Of a pool whose plain twin takes 10 ms per token."""
    return Comparison(value, error, 0.010, 0.010 * (1 - value), 200.0, 3, "requests")
