"""Fits a speed profile to measured times: the step-time model of `gateway.profiles.speed`, by least squares.

    step = base + position k + token B(k+1) + experts (1 - (1 - active)^m) + context B S/1000 + mtp_context [k>0] S/1000

Relative errors are minimised. Terms that come out negative are removed one by one, the most negative first, as are
terms that the points cannot distinguish from another. With a single k the fixed cost of drafting (`mtp`) cannot be
separated from the cost per position, so `position` takes both: the fit is exact for that k only. Model properties that
do not depend on hardware (attention window, experts per token, routing overlap) come from the model's built-in profile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import yaml

from gateway.profiles import Attention, Decode, Prefill, Profile

MIN_RATE, MAX_RATE = 10.0, 1e7
"""Bounds of the prefill rate in tokens per second, in case noise distorts the slope."""


@dataclass(frozen=True, slots=True)
class Point:
    """A measured decode step: draft tokens, batch, mean context (tokens), time."""

    k: int
    batch: float
    context: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Fitted:
    """The fitted decode terms and their relative errors; 0.05 = 5 %."""

    decode: Decode
    points: int
    rms: float
    worst: float


def least_squares(rows: Sequence[Sequence[float]], targets: Sequence[float]) -> list[float]:
    """Coefficients that minimise the squared error, by normal equations with scaled columns.

    A small ridge term (1e-9 of each column's square) splits a coefficient evenly between collinear columns.
    """
    width = len(rows[0])
    scale = [max(sum(row[i] ** 2 for row in rows) ** 0.5, 1e-300) for i in range(width)]
    scaled = [[value / s for value, s in zip(row, scale, strict=True)] for row in rows]
    matrix = [[sum(row[i] * row[j] for row in scaled) + 1e-9 * (i == j) for j in range(width)] for i in range(width)]
    right = [sum(row[i] * target for row, target in zip(scaled, targets, strict=True)) for i in range(width)]
    solved = _solve(matrix, right)
    return [value / s for value, s in zip(solved, scale, strict=True)]


def _solve(matrix: list[list[float]], right: list[float]) -> list[float]:
    """Gaussian elimination with pivoting."""
    size = len(right)
    rows = [[*row, value] for row, value in zip(matrix, right, strict=True)]
    for column in range(size):
        pivot = max(range(column, size), key=lambda r: abs(rows[r][column]))
        rows[column], rows[pivot] = rows[pivot], rows[column]
        for other in range(column + 1, size):
            factor = rows[other][column] / rows[column][column]
            for place in range(column, size + 1):
                rows[other][place] -= factor * rows[column][place]
    solved = [0.0] * size
    for row in reversed(range(size)):
        known = sum(rows[row][i] * solved[i] for i in range(row + 1, size))
        solved[row] = (rows[row][size] - known) / rows[row][row]
    return solved


def fit_decode(points: Sequence[Point], like: Profile) -> Fitted:
    """Fits the decode terms; `like` is a profile of the same model on any hardware."""
    active, locality = like.decode.active, like.decode.locality
    terms: dict[str, list[float]] = {"base": [1.0 for _ in points]}
    batches, contexts = {p.batch for p in points}, {p.context for p in points}
    seen = [like.attention.seen(p.context) / 1000.0 for p in points]
    if any(p.k for p in points):
        terms["position"] = [float(p.k) for p in points]
    if len(batches) > 1:
        terms["token"] = [p.batch * (p.k + 1) for p in points]
        if active:
            terms["experts"] = [1.0 - (1.0 - active) ** (p.batch * (1.0 + p.k * locality)) for p in points]
    if len(contexts) > 2:
        terms["context"] = [p.batch * s for p, s in zip(points, seen, strict=True)]
        if "position" in terms:
            terms["mtp_context"] = [s if p.k else 0.0 for p, s in zip(points, seen, strict=True)]
    targets = [p.seconds * 1000.0 for p in points]
    found = _not_negative(terms, targets)
    about = {"active": active, "locality": locality} if active and found.get("experts") else {}
    decode = Decode(**{"base": 0.0, **found, **about})
    guess = Profile(
        hardware="fit", model="fit", moe=False, source="", decode=decode, prefill=like.prefill,
        attention=like.attention, by_task=like.by_task,
    )  # fmt: skip
    errors = [guess.step_seconds(p.batch, p.k, p.context) / p.seconds - 1.0 for p in points]
    rms = (sum(error**2 for error in errors) / len(errors)) ** 0.5
    return Fitted(decode, len(points), rms, max(abs(error) for error in errors))


def _not_negative(terms: Mapping[str, list[float]], targets: Sequence[float]) -> dict[str, float]:
    """Least squares of relative errors, over the terms with positive coefficients."""
    used = dict(terms)
    while True:
        rows = [[column[i] / target for column in used.values()] for i, target in enumerate(targets)]
        found = dict(zip(used, least_squares(rows, [1.0] * len(targets)), strict=True))
        # Compare contributions rather than coefficients, since the columns differ in scale.
        weight = {name: value * max(map(abs, used[name])) for name, value in found.items()}
        least = min(weight, key=lambda name: weight[name])
        if weight[least] >= 0.0 or len(used) == 1:
            return {name: max(value, 0.0) for name, value in found.items()}
        del used[least]


def fit_prefill(probes: Sequence[tuple[bool, float, float]], stalls: Mapping[bool, float]) -> Prefill:
    """Fits the prefill terms as a straight line: prompts far longer than the probes take longer than it says, since
    attention over a prompt (`context`) cannot be told from so few lengths.

    `probes` are (drafting, prompt tokens, TTFT in seconds) on an idle engine; `stalls` are the seconds that a short
    joining prompt adds to a running answer, by drafting. Drafting cannot make prefill cheaper: if noise or padding
    made the drafting side's TTFT or stall shorter, TTFT is fitted over both sides and the plain stall counts for both.
    """
    milliseconds = [seconds * 1000.0 for _, _, seconds in probes]
    rows = [[1.0, float(drafting), tokens] for drafting, tokens, _ in probes]
    fixed, extra, per_token = least_squares(rows, milliseconds)
    if extra < 0.0:
        extra, (fixed, per_token) = 0.0, least_squares([[1.0, tokens] for _, tokens, _ in probes], milliseconds)
    rate = min(max(1000.0 / per_token, MIN_RATE), MAX_RATE) if per_token > 0 else MAX_RATE
    stall = 1000.0 * max(stalls.get(False, 0.0), 0.0)
    return Prefill(
        fixed=max(fixed, 0.0),
        mtp_fixed=extra,
        stall=stall,
        mtp_stall=max(1000.0 * stalls.get(True, 0.0) - stall, 0.0),
        tokens_per_second=rate,
    )


def falling(rates: Sequence[float]) -> list[float]:
    """Unconditional acceptance rates clamped to 0..1 and to not increase, as a profile requires."""
    kept: list[float] = []
    for rate in rates:
        kept.append(round(min(max(rate, 0.0), kept[-1] if kept else 1.0), 4))
    return kept


def profile_text(
    hardware: str,
    model: str,
    source: str,
    decode: Decode,
    prefill: Prefill,
    attention: Attention,
    acceptance: Mapping[str, Sequence[float]],
) -> str:
    """A profile file in YAML, for `gateway.profiles.parse_catalog` and a policy's `profile: FILE`."""
    document = {
        "hardware": {
            hardware: {
                "source": source,
                "acceptance": {name: falling(rates) for name, rates in acceptance.items()},
                "models": {
                    model: {"decode": _terms(decode), "prefill": _terms(prefill), "attention": _terms(attention)}
                },
            }
        }
    }
    head = "# Speed profile written by `gateway bench breakeven`. Milliseconds; a pool's `profile:` names this file.\n"
    return head + yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=110, default_flow_style=None)


def _terms(terms: Any) -> dict[str, float]:
    return {name: round(float(value), 6) for name, value in asdict(terms).items()}
