"""The types that travel along a request's path, in the order in which they appear. Read this file first.

bytes -> `Features` (what the request says) -> `Estimate` (how long the answer will be) -> `Decision` (which pool,
and why) -> `Outcome` (how it ended). All are frozen. Nothing here does I/O, and the enums are in `gateway.words`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from gateway.records import keyword_record, record
from gateway.trace import Trace
from gateway.words import Api, Need, Place, PoolKind, Reason, Result, Structure, Task, ToolChoice

__all__ = [
    "NO_HINTS",
    "Api",
    "CostTerms",
    "Decision",
    "Estimate",
    "Features",
    "Hints",
    "LoadView",
    "Need",
    "Outcome",
    "Place",
    "PoolCost",
    "PoolKind",
    "PoolLoad",
    "Reason",
    "Result",
    "SpecSample",
    "Structure",
    "Task",
    "ToolChoice",
    "Trace",
    "Usage",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hints:
    """What a client may say to routing in `x-gateway-*` request headers. Never forwarded."""

    pool: str | None = None
    task: Task | None = None
    output_tokens: int | None = None
    session: str | None = None


NO_HINTS = Hints()


@record
class Features:
    """What the request says about its answer, read from the body alone. Lengths are tokens unless stated otherwise."""

    api: Api
    model: str
    """As the client wrote it; an alias is not resolved here."""
    stream: bool = False
    input_tokens: int = 0
    """Prompt tokens, estimated, chat framing and tools included."""
    language: str = "und"
    """ISO 639-1 code of the last instruction's script or language; `und` where unclear."""
    cap: int | None = None
    """Hard upper bound of one choice's output: explicit, defaulted (completions: 16), or by choices/schema."""
    explicit_cap: bool = False
    token_limit: int | None = None
    """The part of `cap` that the token parameters set. It bounds thinking too, which a structure's bound does not."""
    structure_tokens: int | None = None
    """Typical length of an answer that fits the choices or the schema; None without one."""
    floor: int = 0
    """`min_tokens`; equal to `cap` with `ignore_eos`."""
    stop_line: bool = False
    """Whether a stop string ends the answer at its first line break."""
    scoring: bool = False
    """Whether the request asks for probabilities, of its prompt or of a few labels, rather than for text."""
    n: int = 1
    structure: Structure = Structure.NONE
    legacy_guided: bool = False
    """Whether the structure is in a `guided_*` field, which newer engines ignore silently."""
    labels: int = 0
    """Number of labels in a choice list, enum or list of allowed token ids; 0 without one."""
    tools: int = 0
    tool_choice: ToolChoice = ToolChoice.NONE
    thinking: bool | None = None
    """The client's switch; None leaves it to the model."""
    thinking_budget: int | None = None
    turns: int = 0
    """Messages of any role."""
    prefill: bool = False
    """Whether the answer continues an assistant turn that the client has begun."""
    after_tool: bool = False
    """Whether tool results follow the last user turn."""
    wish: int | None = None
    """An explicit length wish ("in 200 words", 「200字程度」), in tokens."""
    wish_firm: bool = False
    """Whether the wish determines the answer's form ("yes or no", 「番号のみ」), rather than a size to aim at."""
    detail: int = 0
    """-1 where brevity is asked for, 1 where detail is, else 0."""
    step_by_step: bool = False
    """Whether a written-out derivation is asked for."""
    few_shot: int | None = None
    """Median length of the in-context examples' answers; None without examples."""
    few_shots: int = 0
    """Number of these examples."""
    last_answer: int | None = None
    """Length of the conversation's latest assistant turn, examples not counted as such."""
    ask_tokens: int = 0
    """Length of the last user turn, pasted documents included."""
    place: Place = Place.WHOLE
    hint_task: Task | None = None
    """The client's `x-gateway-task`."""
    hint_tokens: int | None = None
    """The client's `x-gateway-output-tokens`."""
    profile: tuple[int, ...] = ()
    """What the prompt tokens are made of (`request.tokens.Part` gives the order); what counting learns from."""
    code_share: float = 0.0
    """Share of the last user turn that is code, 0..1."""
    modalities: frozenset[str] = frozenset({"text"})
    needs: frozenset[Need] = frozenset()
    task_scores: tuple[tuple[Task, float], ...] = ()
    """Evidence for tasks by the text rules, strongest first; scores sum to at most 1."""
    instruction: str = ""
    """The text that carries the ask, bounded in length. Never logged."""
    system_text: str = ""
    """The system prompt's first 300 and last 200 characters. Never logged."""
    user_head: str = ""
    """The last user turn's first 800 characters, documents and code included. Never logged."""
    user_tail: str = ""
    """Its last 1,200 characters, empty where `user_head` is all of it. Never logged."""
    user_chars: int = 0
    """Its characters in all."""
    tool_fields: int = 0
    """Required parameters of all tools."""
    groups: tuple[int, ...] = (0, 0, 0, 0, 0)
    """The lexicon's groups of words in the text, as bits (`request.lexicon.Groups` gives the order)."""
    system_key: int = 0
    """64-bit hash of the system prompt, 0 without one."""
    template_key: int = 0
    """64-bit hash of the instruction's invariant parts (head and tail)."""
    head_key: int = 0
    """64-bit hash of the last user turn's first 24 characters, digits left out."""
    tail_key: int = 0
    """64-bit hash of its last 16 characters, digits left out."""
    form_key: int = 0
    """64-bit hash of the labels that begin its lines ("Text:", 「文1：」); 0 where there are none."""
    shape_key: int = 0
    """64-bit hash of the request's form: parameters' names, schema, tools."""
    thread_key: int = 0
    """64-bit hash of what a conversation's turns share: `session_id`, `user` or how it began; 0 where it is none."""


@record
class Estimate:
    """How many tokens one choice will have, min(N, cap), as expected before it starts."""

    task: Task
    output_tokens: float
    """The expected value, from which expected times are computed; above p50 for heavy tails."""
    p50: float
    p90: float
    confidence: float
    """0 (no idea) .. 1 (a bound settles it)."""
    source: str
    """What determined it: cap, choice, schema, wish, few_shot, hint, rules, prior, history or unknown."""


class CostTerms(NamedTuple):
    """Where a pool's expected seconds come from. A tuple, because every decision makes one per pool."""

    running: float
    """Other requests per endpoint. Not a time, but what the times depend on."""
    wait: float
    """Until the engine starts the request."""
    first: float
    """From there to the first token."""
    decode: float
    """From there to the last."""
    imposed: float
    """The time that the requests already running there lose, in sum. Not part of the request's own time."""
    saved: float
    """By how much `first` would be longer without the prefix that is cached there."""


class PoolCost(NamedTuple):
    """What it would take a pool to serve the request: expected seconds, or why it is out. A tuple, as above."""

    pool: str
    kind: PoolKind
    seconds: float | None
    """The request's own: wait + first + decode."""
    out: str | None = None
    terms: CostTerms | None = None


@record
class Decision:
    """Which pool, why, and what the others would have cost. `order` lists every allowed pool, best first."""

    model: str
    """The policy's model, aliases resolved."""
    pool: str
    reason: Reason
    detail: str = ""
    """The name of the rule or gate; empty where the reason says it all."""
    order: tuple[str, ...] = ()
    costs: tuple[PoolCost, ...] = ()
    endpoint: str | None = None
    """Where in the pool the conversation's prefix is cached: preferred, as far as load and health allow."""
    cached: int = 0
    """Tokens of that prefix."""
    thread: int = 0
    """The conversation's key; 0 where there is none."""

    def terms(self, pool: str) -> CostTerms | None:
        """Where that pool's expected seconds come from; None where they are not known."""
        for name, _, _, _, terms in self.costs:
            if name == pool:
                return terms
        return None


class PoolLoad(NamedTuple):
    """A pool at one instant, by our counts and the engines'. A tuple, because every decision asks every pool."""

    up: int
    """Endpoints that can take traffic now."""
    in_flight: int = 0
    """Requests running in the pool: ours, and those of other clients where engines are scraped."""
    waiting: int = 0
    full: bool = False
    window: int | None = None
    """The smallest context length that its endpoints report, in tokens; None if none reports one."""
    since: float | None = None
    """Seconds since this process took a slot of the pool's only endpoint; None where there are several, or no room."""


class LoadView(Protocol):
    """What the router may ask about the live pools."""

    def load(self, pool: str) -> PoolLoad: ...


@dataclass(frozen=True, slots=True)
class SpecSample:
    """Counts of speculative decoding, of one answer or of many."""

    drafts: float
    draft_tokens: float
    accepted_tokens: float
    accepted_at: tuple[float, ...] = ()
    """Accepted tokens by draft position; empty if only the sums are known."""


@keyword_record
class Usage:
    """Token counts as the back end reported them."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    spec: SpecSample | None = None
    """The answer's own drafting counts, where the back end sends them."""


@keyword_record
class Outcome:
    """All that is known once a request is over, made by `api.exchange`. Times are the monotonic clock's seconds."""

    request_id: str
    result: Result
    status: int
    started: float
    ended: float
    features: Features | None = None
    estimate: Estimate | None = None
    decision: Decision | None = None
    endpoint: str | None = None
    usage: Usage | None = None
    finish_reason: str | None = None
    sent_upstream: float | None = None
    """When the last attempt began."""
    waited: float = 0.0
    """Seconds in the admission queue."""
    first_byte: float | None = None
    """When the first body byte of the answer came from the back end."""
    attempts: int = 0
    key: str | None = None
    """The name of the API key, never the key."""
    error: str | None = None
    """The gateway's own error code, or None."""
    trace: Trace | None = None
    """None where tracing is off."""
    canary: str | None = None
    """The canary policy's hash, where it decided; None: the live policy."""
    model: str | None = None
    """The policy's model, also where the request ended before a decision; None: none was found."""
