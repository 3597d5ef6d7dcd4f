"""Bodies in one line, for tests of what is read from them."""

from __future__ import annotations

import json
from collections.abc import Mapping

from gateway.request.features import extract
from gateway.request.parse import parse_body
from gateway.types import Api, Features

Message = Mapping[str, object]


def user(content: object) -> Message:
    """A user turn."""
    return {"role": "user", "content": content}


def of(data: object, api: Api = Api.CHAT) -> Features:
    """Features of a body given as a JSON value."""
    return extract(parse_body(json.dumps(data).encode()), api)


def chat(*messages: Message, **params: object) -> Features:
    """Features of a chat request."""
    return of({"model": "m", "messages": list(messages), **params})


def completion(prompt: object, **params: object) -> Features:
    """Features of a completions request."""
    return of({"model": "m", "prompt": prompt, **params}, Api.COMPLETIONS)
