"""A decision in the public JSON shape. The command, `POST /gateway/explain` and the decision log all use it."""

from __future__ import annotations

from typing import Any

from gateway.types import CostTerms, Decision, Estimate, Features


def explanation(features: Features, estimate: Estimate, decision: Decision) -> dict[str, Any]:
    """`{"model", "features", "estimate", "pools", "decision"}`; holds no text of the request."""
    return {
        "model": decision.model,
        "features": describe_features(features),
        "estimate": {
            "task": estimate.task.value,
            "output_tokens": round(estimate.output_tokens, 1),
            "p50": round(estimate.p50, 1),
            "p90": round(estimate.p90, 1),
            "confidence": round(estimate.confidence, 3),
            "source": estimate.source,
        },
        "pools": [
            {
                "pool": cost.pool,
                "kind": cost.kind.value,
                "expected_seconds": None if cost.seconds is None else round(cost.seconds, 6),
                "out": cost.out,
                "terms": _terms(cost.terms),
            }
            for cost in decision.costs
        ],
        "decision": {
            "pool": decision.pool,
            "reason": decision.reason.value,
            "detail": decision.detail,
            "order": list(decision.order),
        },
    }


def describe_features(features: Features) -> dict[str, Any]:
    """The features that say why, without text and without hashes of text."""
    return {
        "api": features.api.value,
        "stream": features.stream,
        "input_tokens": features.input_tokens,
        "language": features.language,
        "cap": features.cap,
        "floor": features.floor,
        "n": features.n,
        "structure": features.structure.value,
        "labels": features.labels,
        "tools": features.tools,
        "tool_choice": features.tool_choice.value,
        "thinking": features.thinking,
        "turns": features.turns,
        "wish": features.wish,
        "few_shot": features.few_shot,
        "code_share": round(features.code_share, 3),
        "modalities": sorted(features.modalities),
        "needs": sorted(features.needs),
    }


def _terms(terms: CostTerms | None) -> dict[str, float] | None:
    """Where the seconds come from; `running` is a number of requests, the rest are seconds."""
    return None if terms is None else {name: round(value, 6) for name, value in terms._asdict().items()}
