"""The request's own bounds on its output: token parameters, counts, stops, thinking switches, and needs.

Values are read as tolerantly as clients write them ("100", 100.0); what makes no sense counts as not given, and the
back end judges it.
"""

from __future__ import annotations

import math

from gateway.records import record
from gateway.request.parse import is_true
from gateway.types import Api, Need, Structure, ToolChoice

COMPLETIONS_DEFAULT = 16
"""vLLM's and OpenAI's `max_tokens` on completions where the client says nothing."""
_LIMIT_NAMES = {
    Api.CHAT: ("max_completion_tokens", "max_tokens", "max_output_tokens"),
    Api.COMPLETIONS: ("max_tokens", "max_completion_tokens", "max_output_tokens"),
    Api.RESPONSES: ("max_output_tokens",),
    Api.MESSAGES: ("max_tokens",),
}
_LARGEST = 2**31 - 1
_MAX_CHOICES = 4096
_SCORED_LABELS = 64


@record
class Caps:
    """Bounds that parameters set, in tokens of one choice, and how many choices there are."""

    limit: int | None
    explicit: bool
    floor: int
    n: int
    stop_line: bool
    allowed_ids: int
    """Length of `allowed_token_ids`, or of `logprob_token_ids`; 0 without them."""
    scoring: bool


@record
class Thinking:
    on: bool | None
    budget: int | None


# Most requests have none of these fields, and one look tells.
_BOUND_FIELDS = frozenset(
    ("min_tokens", "ignore_eos", "allowed_token_ids", "logprob_token_ids", "n", "best_of", "stop", "echo")
)
_THINKING_FIELDS = frozenset(("chat_template_kwargs", "reasoning_effort", "reasoning", "thinking_token_budget"))
_NEED_FIELDS = frozenset(("min_p", "logit_bias", "logprobs", "prompt_logprobs", "use_beam_search"))
FIELDS = _BOUND_FIELDS | _THINKING_FIELDS | _NEED_FIELDS
"""All of these."""
_NO_THINKING = Thinking(None, None)
_NO_NEEDS: frozenset[Need] = frozenset()


def whole(value: object) -> int | None:
    """A non-negative whole number out of a JSON value, bounded; None where there is none."""
    if value is None:
        return None
    if isinstance(value, str):
        value = value.strip()
        if not (value.isascii() and value.isdigit()):
            return None
        return int(value[:12]) if len(value) <= 12 else _LARGEST
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if isinstance(value, float) and not (math.isfinite(value) and value == int(value)):
        return None
    return min(int(value), _LARGEST) if value >= 0 else None


def read_caps(data: dict[str, object], api: Api) -> Caps:
    limit = None
    for name in _LIMIT_NAMES[api]:
        limit = whole(data.get(name))
        if limit is not None:
            break
    explicit = limit is not None
    if limit is None and api is Api.COMPLETIONS:
        limit = COMPLETIONS_DEFAULT
    if data.keys().isdisjoint(_BOUND_FIELDS):
        return Caps(limit, explicit, 0, 1, False, 0, False)
    floor = whole(data.get("min_tokens")) or 0
    if limit is not None:
        floor = limit if is_true(data.get("ignore_eos")) else min(floor, limit)
    allowed = _count(data.get("allowed_token_ids")) or _count(data.get("logprob_token_ids"))
    n = max(whole(data.get("n")) or 1, whole(data.get("best_of")) or 1)
    return Caps(
        limit=limit,
        explicit=explicit,
        floor=floor,
        n=min(n, _MAX_CHOICES),
        stop_line=_stops_at_line(data.get("stop")),
        allowed_ids=allowed,
        scoring=0 < allowed <= _SCORED_LABELS or (is_true(data.get("echo")) and limit is not None and limit <= 1),
    )


def read_thinking(data: dict[str, object]) -> Thinking:
    """The client's switch, in vLLM's order: the template's own argument, then `reasoning_effort`."""
    if data.keys().isdisjoint(_THINKING_FIELDS):
        return _NO_THINKING
    kwargs = data.get("chat_template_kwargs")
    kwargs = kwargs if isinstance(kwargs, dict) else {}
    on: bool | None = None
    for name in ("enable_thinking", "thinking"):
        if isinstance(kwargs.get(name), bool | int | str):
            on = is_true(kwargs[name])
            break
    effort = data.get("reasoning_effort")
    if effort is None:
        reasoning = data.get("reasoning")
        effort = reasoning.get("effort") if isinstance(reasoning, dict) else None
    if on is None and isinstance(effort, str):
        on = effort.lower() != "none"
    budget = whole(data.get("thinking_token_budget"))
    return Thinking(on, budget)


def read_tool_choice(data: dict[str, object], tools: int) -> ToolChoice:
    choice = data.get("tool_choice")
    if tools == 0 or choice == "none":
        return ToolChoice.NONE
    if isinstance(choice, dict):
        return ToolChoice.NAMED
    return ToolChoice.REQUIRED if choice == "required" else ToolChoice.AUTO


def _is_positive(value: object) -> bool:
    """Whether pydantic, and so vLLM, reads a number above 0: from texts and booleans as well."""
    try:
        return isinstance(value, int | float | str) and float(value) > 0
    except (ValueError, OverflowError):
        return False


def read_needs(data: dict[str, object], structure: Structure, thinking: bool | None) -> frozenset[Need]:
    if structure is Structure.NONE and data.keys().isdisjoint(_NEED_FIELDS):
        return _NO_NEEDS
    needs: set[Need] = set()
    if _is_positive(data.get("min_p")):
        needs.add(Need.MIN_P)
    if data.get("logit_bias"):
        needs.add(Need.LOGIT_BIAS)
    logprobs = data.get("logprobs")
    if is_true(logprobs) or (whole(logprobs) is not None and logprobs is not False):
        needs.add(Need.LOGPROBS)
    if whole(data.get("prompt_logprobs")) is not None:
        needs.add(Need.PROMPT_LOGPROBS)
    if is_true(data.get("use_beam_search")):
        needs.add(Need.BEAM_SEARCH)
    if structure is not Structure.NONE:
        needs.add(Need.STRUCTURED)
        if thinking:
            needs.add(Need.STRUCTURED_THINKING)
    return frozenset(needs)


def _count(value: object) -> int:
    return len(value) if isinstance(value, list) else 0


def _stops_at_line(stop: object) -> bool:
    stops = [stop] if isinstance(stop, str) else stop
    return isinstance(stops, list) and "\n" in stops
