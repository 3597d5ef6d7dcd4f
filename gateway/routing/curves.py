"""All speed curves: which there are, what outcomes teach them, and how replicas share what they learned.

    measured TTFT = first byte - sent         (streams)
    measured TPOT = (ended - first byte) / (tokens - 1)
    measured total = ended - sent             (other answers: one number for both curves, by their expected shares)

Failed and retried requests teach nothing. The batch that a request ran in is the mean of those at its start and its
end. Memory is bounded: a curve per pool and model of the policy, with a bounded number of cells.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any, NamedTuple

from gateway.profiles import Profile
from gateway.records import make
from gateway.routing.curve import Curve, bucket_of
from gateway.routing.learned import HALF_LIFE, pull_together
from gateway.routing.mix import Mix
from gateway.types import CostTerms, Decision, LoadView, Outcome, Task
from gateway.words import OK

MOST_CURVES = 1024
TICK = 0.25
FADE = 5.0
"""Seconds between looks at the rates, and between two fadings of what was learned."""
GAP = 0.05
"""Least seconds between two requests that teach one curve: twenty a second say as much as a thousand."""
LEAST_SEEN = 20.0
"""Observations, faded ones counted in part, from which a curve is more than its profile."""
_SEPARATOR = "\x1f"
_LIVELY = 0.05
"""Seconds after which an answer that was asked for as a stream counts as one; a stream in one piece has no TPOT."""
_FORMAT = 1


class Served(NamedTuple):
    """What the curves need to know of a whole answer. Times are of the gateway's clock."""

    prompt: int
    """Tokens, with those that were cached."""
    cached: int
    tokens: int
    sent: float
    first_byte: float | None
    """None where the answer came in one piece."""
    ended: float


class Curves:
    """Keeps what was learned across policy reloads. Not thread-safe: one event loop owns it."""

    def __init__(self, clock: Callable[[], float], view: LoadView | None = None) -> None:
        """`view` tells the load when a request ends; without it the load at its start counts for all of it."""
        self._clock = clock
        self._view = view
        self._curves: dict[tuple[str, str], Curve] = {}
        self._mixes: dict[str, Mix] = {}
        self._alike: dict[tuple[str, str], list[Curve]] = {}
        """Curves of one model on the same hardware."""
        self._ticked = self._faded = clock()

    def curve(self, pool: str, model: str, profile: Profile, k: int) -> Curve:
        """The curve of a pool and model; a new one where there is none yet, or for another profile or k."""
        found = self._curves.get((pool, model))
        if found is None or found.k != k or found.profile != profile:
            if len(self._curves) >= MOST_CURVES:
                del self._curves[next(iter(self._curves))]
            if len(self._mixes) >= MOST_CURVES:
                del self._mixes[next(iter(self._mixes))]
            mix = self._mixes.setdefault(pool, Mix())
            found = self._curves[pool, model] = Curve(pool, model, profile, k, mix)
            self._alike.clear()
            for curve in self._curves.values():
                self._alike.setdefault((curve.model, curve.profile.hardware), []).append(curve)
        return found

    def __iter__(self) -> Iterator[Curve]:
        return iter(self._curves.values())

    def get(self, pool: str, model: str) -> Curve | None:
        return self._curves.get((pool, model))

    def seconds(
        self, pool: str, model: str, *, tokens: float, task: Task, input_tokens: float, running: float
    ) -> float | None:
        """Expected own time of a request beside `running` others per endpoint; None for a pair that nobody asked for
        yet."""
        curve = self._curves.get((pool, model))
        return curve.seconds(tokens, task, input_tokens, running) if curve else None

    def plain_speed(
        self, plain: str, drafting: str, model: str, tokens: float, running: float
    ) -> tuple[float, float] | None:  # fmt: skip
        """Seconds per token after the first that a plain pool would take for an answer of the drafting pool's kind of
        requests beside `running` others, and their relative standard error; None where its curve is still a profile."""
        curve, other = self._curves.get((plain, model)), self._curves.get((drafting, model))
        if curve is None or other is None or curve.k or tokens < 2.0 or curve.tpot.seen < LEAST_SEEN:
            return None
        # A plain pool's time per token hardly depends on the task; what was learned lies under those that it has had.
        task = max(curve.tasks, key=curve.tasks.__getitem__, default=Task.UNKNOWN)
        seconds = curve.under(other.mix.beside(running)).decode_seconds(tokens, task, running)
        return seconds / (tokens - 1.0), curve.uncertainty

    def accept(self, pool: str, length: float) -> None:
        """Takes the mean acceptance length that telemetry measures for a pool, over the last seconds or minutes."""
        for (name, _), curve in self._curves.items():
            if name == pool:
                curve.accept(length)

    def observe(self, outcome: Outcome) -> None:
        """Learns from a finished request."""
        now = self._clock()
        if now - self._ticked >= TICK:
            self._tick(now)
        decision, features, usage = outcome.decision, outcome.features, outcome.usage
        if outcome.result is not OK or outcome.attempts > 1 or outcome.sent_upstream is None:
            return
        if decision is None or features is None or usage is None or usage.completion_tokens < 1:
            return
        if features.n > 1:
            return
        first_byte = outcome.first_byte if features.stream else None
        self.learn(
            decision,
            outcome.estimate.task if outcome.estimate else Task.UNKNOWN,
            make(Served, (usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens, outcome.sent_upstream,
                          first_byte, outcome.ended)),
        )  # fmt: skip

    def learn(self, decision: Decision, task: Task, served: Served) -> None:
        """What `observe` learns from an answer that is whole and came at the first attempt."""
        now, pool = self._clock(), decision.pool
        if now - self._ticked >= TICK:
            self._tick(now)
        curve = self._curves.get((pool, decision.model))
        if curve is None:
            return
        if (terms := decision.terms(pool)) is not None:
            self._learn(curve, terms, task, served, now)

    def _learn(self, curve: Curve, terms: CostTerms, task: Task, served: Served, now: float) -> None:
        prompt, cached, tokens, sent, first_byte, ended = served
        begun = terms.running
        teaches = now - curve.seen >= GAP
        if teaches:
            load = self._view.load(curve.pool) if self._view else None
            curve.up = load.up or 1 if load else 1
            running = (begun + load.in_flight / curve.up) / 2 if load else begun
        fresh = prompt - cached if prompt - cached > 1 else 1
        total = ended - sent
        streamed = first_byte is not None
        until_first = (first_byte or ended) - sent
        first = 0.0 if streamed and not teaches else curve.first_seconds(fresh, begun, cached)
        waited = until_first if streamed else first
        curve.mix.add(
            others=begun,
            prompt=curve.prompt(fresh, cached),
            endpoints=curve.up,
            context=prompt + tokens / 2,
            first=waited if waited < total else total,
            seconds=total if total > 0.0 else 0.0,
        )
        curve.tasks[task] = curve.tasks.get(task, 0.0) + tokens
        if not teaches:
            return
        curve.seen = now
        decode = curve.decode_seconds(tokens, task, running)
        keys, firsts = (bucket_of(running), task), (bucket_of(begun),)
        waits = terms.wait > first
        after = total - until_first
        if streamed and (tokens == 1 or after > _LIVELY or after > 0.2 * decode):
            if not waits:
                curve.ttft.learn(until_first / first, firsts, 1.0)
            if tokens > 1:
                curve.tpot.learn(after / decode, keys, _weight(tokens))
        else:
            expected = terms.wait + first + decode
            share = decode / expected
            if share > 0.1:
                curve.tpot.learn(total / expected, keys, share * _weight(tokens))
            if share < 0.9 and not waits:
                curve.ttft.learn(total / expected, firsts, 1.0 - share)

        self._compare(curve)

    def _compare(self, curve: Curve) -> None:
        alike = self._alike[curve.model, curve.profile.hardware]
        if len(alike) > 1:
            pull_together([one.tpot.base for one in alike])
            pull_together([one.ttft.base for one in alike])

    def _tick(self, now: float) -> None:
        for mix in self._mixes.values():
            mix.tick(now - self._ticked)
        self._ticked = now
        if now - self._faded >= FADE:
            factor = 0.5 ** ((now - self._faded) / HALF_LIFE)
            for curve in self._curves.values():
                curve.tpot.fade(factor)
                curve.ttft.fade(factor)
                curve.tasks = {task: 0.8 * tokens for task, tokens in curve.tasks.items() if tokens > 1.0}
            self._faded = now

    def snapshot(self, at: float = 0.0) -> bytes:
        """What this process has learned itself, for other replicas and for its own next start. `at`: seconds since the
        epoch."""
        rows = {
            _SEPARATOR.join(key): {
                "profile": curve.profile.name,
                "k": curve.k,
                "tpot": curve.tpot.dump(),
                "ttft": curve.ttft.dump(),
            }
            for key, curve in self._curves.items()
        }
        return json.dumps({"format": _FORMAT, "at": at, "curves": rows}).encode()

    def merge(self, snapshots: Mapping[str, bytes], own: str | None = None, *, resume: bool = False) -> None:
        """Takes the other replicas' snapshots in place of what they sent before; `own` names the one to leave out, or,
        with `resume`, to take as this process's own from before a restart. That once.

        A snapshot counts for less the older it is than the newest one, or what replicas knew that are gone would hold
        for ever. One that is broken, of another format, or of another profile or k says nothing.
        """
        documents = {name: document for name, blob in snapshots.items() if (document := _document(blob)) is not None}
        newest = max((document["at"] for document in documents.values()), default=0.0)
        heard: _Heard = {}
        mine: _Heard = {}
        for name, document in documents.items():
            part = 0.5 ** ((newest - document["at"]) / HALF_LIFE)
            self._read(document, part, mine if name == own else heard)
        for key, curve in self._curves.items():
            tpot, ttft = heard.get(key, ({}, {}))
            curve.tpot.hear(tpot)
            curve.ttft.hear(ttft)
            if resume and key in mine:
                curve.tpot.resume(mine[key][0])
                curve.ttft.resume(mine[key][1])

    def _read(self, document: dict[str, Any], part: float, heard: _Heard) -> None:
        try:
            for name, row in document["curves"].items():
                pool, _, model = name.partition(_SEPARATOR)
                curve = self._curves.get((pool, model))
                if curve is None or row["k"] != curve.k or row["profile"] != curve.profile.name:
                    continue
                sums = heard.setdefault((pool, model), ({}, {}))
                for rows, into in zip((row["tpot"], row["ttft"]), sums, strict=True):
                    for key, weight, total in rows:
                        before = into.get(_key(key), (0.0, 0.0))
                        into[_key(key)] = (before[0] + part * float(weight), before[1] + part * float(total))
        except (ValueError, KeyError, TypeError, AttributeError):
            return


_Rows = dict[Hashable, tuple[float, float]]
_Heard = dict[tuple[str, str], tuple[_Rows, _Rows]]


def _document(snapshot: bytes) -> dict[str, Any] | None:
    """A snapshot's object, with the time at which it was made; None for what is none of this format."""
    try:
        document = json.loads(snapshot)
        if document["format"] != _FORMAT:
            return None
        # Older versions wrote no time.
        document["at"] = at = float(document.get("at", 0.0))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    return document if math.isfinite(at) else None


def _key(written: object) -> Hashable:
    """A cell's key from JSON: the base, a load bucket or a task."""
    return Task(written) if isinstance(written, str) and written else int(str(written)) if written != "" else ""


def _weight(tokens: int) -> float:
    """How much a request says about the time per token: one of 17 tokens or more counts full."""
    return min(1.0, (tokens - 1) / 16.0)
