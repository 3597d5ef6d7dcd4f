"""The enums in which requests, decisions and outcomes are described. Policies, headers and metrics use their values."""

from __future__ import annotations

from enum import StrEnum


class Task(StrEnum):
    """What kind of answer is asked for. The values are public: policies and metrics use them."""

    CLASSIFICATION = "classification"
    MULTIPLE_CHOICE = "multiple_choice"
    EXTRACTION = "extraction"
    SHORT_QA = "short_qa"
    MATH = "math"
    CODE = "code"
    CHAT = "chat"
    SUMMARIZATION = "summarization"
    REWRITING = "rewriting"
    TRANSLATION = "translation"
    LONG_FORM = "long_form"
    TOOL_CALL = "tool_call"
    STRUCTURED_JSON = "structured_json"
    REASONING = "reasoning"
    UNKNOWN = "unknown"


class PoolKind(StrEnum):
    """Whether a pool's engines draft tokens."""

    PLAIN = "plain"
    MTP = "mtp"


class Api(StrEnum):
    """The request format, which decides the names and the defaults of the output caps."""

    CHAT = "chat"
    COMPLETIONS = "completions"
    RESPONSES = "responses"
    MESSAGES = "messages"


class Structure(StrEnum):
    """What the engine is asked to constrain the answer to."""

    NONE = "none"
    CHOICE = "choice"
    JSON_SCHEMA = "json_schema"
    JSON_OBJECT = "json_object"
    REGEX = "regex"
    GRAMMAR = "grammar"


class ToolChoice(StrEnum):
    """The request's `tool_choice`; AUTO where tools are given and nothing is said."""

    NONE = "none"
    AUTO = "auto"
    REQUIRED = "required"
    NAMED = "named"


class Place(StrEnum):
    """Where in the request its instruction was found."""

    WHOLE = "whole"
    START = "start"
    END = "end"
    SYSTEM = "system"


class Need(StrEnum):
    """Something that a request needs and that not every engine can do; pools are gated on it."""

    MIN_P = "min_p"
    LOGIT_BIAS = "logit_bias"
    LOGPROBS = "logprobs"
    PROMPT_LOGPROBS = "prompt_logprobs"
    BEAM_SEARCH = "beam_search"
    STRUCTURED = "structured"
    STRUCTURED_THINKING = "structured_thinking"


class Reason(StrEnum):
    """Why the pool was chosen. The values are public: headers and metrics use them."""

    ONLY_POOL = "only_pool"
    CLIENT = "client"
    GATE = "gate"
    RULE = "rule"
    FASTER = "faster"
    TIE = "tie"
    THRESHOLD = "threshold"
    STICKY = "sticky"
    SPILL = "spill"
    EXPLORE = "explore"
    DECISIONS = "decisions"
    PASS_THROUGH = "pass_through"


class Result(StrEnum):
    """How a request ended. The values are public: metrics use them."""

    OK = "ok"
    CLIENT_ERROR = "client_error"
    CLIENT_CLOSED = "client_closed"
    BACKEND_ERROR = "backend_error"
    TRUNCATED = "truncated"
    TIMEOUT = "timeout"
    REJECTED = "rejected"


OK = Result.OK
"""For what every request asks several times: looking up a member of an enum takes as long as calling a function or two
(CPython 3.11)."""
OTHER = "other"
"""What metrics call a model or a pool that the live policy does not know."""
NONE = "none"
"""What metrics call a pool, a task or a reason where there is none."""
