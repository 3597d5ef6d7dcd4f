"""Errors in vLLM's own form: `{"error": {"message", "type", "param", "code"}}` with the status as an integer code."""

from __future__ import annotations

import json


class ApiError(Exception):
    """A request that is refused with a status and an error body."""

    def __init__(self, status: int, kind: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.message = message
        self.param = param

    def body(self) -> bytes:
        error = {"message": self.message, "type": self.kind, "param": self.param, "code": self.status}
        # Escaped, for a lone surrogate quoted from a body has no UTF-8 form.
        return json.dumps({"error": error}, separators=(",", ":")).encode()


def invalid(message: str, param: str | None = None) -> ApiError:
    """A 400 of vLLM's own validation."""
    return ApiError(400, "BadRequestError", message, param)


def overloaded() -> ApiError:
    return ApiError(503, "Service Unavailable", "The server is overloaded: too many requests are queued.")


def too_long(limit: int) -> ApiError:
    """A prompt beyond the context; counting stops one token past the limit, hence "at least"."""
    return invalid(
        f"This model's maximum context length is {limit} tokens. However, your prompt contains at least {limit + 1} "
        f"input tokens. Please reduce the length of the input prompt. (parameter=input_tokens, value={limit + 1})",
        param="input_tokens",
    )


def field_errors(wrong: list[tuple[str, str, str]]) -> ApiError:
    """A 400 for fields of the wrong type, given as (field, what it should be, pydantic's name for it)."""
    lines = [
        f"  {{'type': '{kind}', 'loc': ('body', '{name}'), 'msg': '{message}'}}" for name, message, kind in wrong[:10]
    ]
    plural = "error" if len(wrong) == 1 else "errors"
    return ApiError(400, "Bad Request", f"{len(wrong)} validation {plural}:\n" + "\n".join(lines))
