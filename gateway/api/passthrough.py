"""Every other `/v1/` path, and vLLM's `/tokenize` and `/detokenize`: relayed to a pool of the named model.

No client is blocked by what this gateway has not heard of. The model is read from a JSON body or a multipart form;
a request without one goes to the first model of the policy. What must never be reachable (development and
LoRA-loading routes, paths that climb) is refused here; vLLM's development routes lie outside `/v1/` anyway.
"""

from __future__ import annotations

import re

from gateway.api.core import find_model
from gateway.api.forward import Plan, admit, forward
from gateway.api.handler import Handler, Incoming
from gateway.errors import BadRequest, Forbidden, NotFound
from gateway.policy.schema import AccessKey, Model, Policy
from gateway.request.parse import Body, parse_body, rewrite_model
from gateway.types import Decision, Reason

BYTES_PER_TOKEN = 4
"""A rough charge against a key's input limit; nothing is estimated here, and no usage need come back."""
FORBIDDEN = ("load_lora_adapter", "unload_lora_adapter")

_FORM_MODEL = re.compile(rb'name="model"\r\n(?:[^\r\n]{1,200}\r\n){0,4}\r\n([^\r\n]{1,256})\r\n')


class PassThrough(Handler):
    """Routed by model and health only; nothing is estimated."""

    async def serve(self, incoming: Incoming) -> None:
        policy, head = incoming.active.policy, incoming.head
        check_path(incoming.scope["raw_path"])
        raw = await incoming.down.body(policy.server.max_body_bytes, head.content_length)
        body: Body | None = None
        asked: str | None = None
        if head.content_type.startswith(b"multipart/form-data"):
            found = _FORM_MODEL.search(raw)
            asked = found[1].decode("utf-8", "replace") if found else None
        elif raw:
            body = readable(raw)
            asked = body.model if body else None
        model = concrete(policy, find_model(policy, asked) if asked else next(iter(policy.models.values())))
        await admit(self.core, incoming, model, len(raw) // BYTES_PER_TOKEN, 0)

        def sent(served: str) -> bytes:
            return raw if body is None or asked is None or asked == served else rewrite_model(raw, body, served)

        pools = allowed(model, incoming.exchange.key)
        incoming.exchange.decision = Decision(model=model.name, pool=pools[0], reason=Reason.PASS_THROUGH, order=pools)
        await forward(self.core, incoming, Plan(model=model, asked=asked, pools=pools, body=sent))


def allowed(model: Model, key: AccessKey | None) -> tuple[str, ...]:
    """The model's pools that the key may use. Raises Forbidden where that is none."""
    if key is None or key.pools is None:
        return model.pools
    if pools := tuple(name for name in model.pools if name in key.pools):
        return pools
    raise Forbidden(f"key {key.name!r} may use no pool of `{model.name}`", param="model")


def readable(raw: bytes) -> Body | None:
    """The body's view where it is a JSON object; what is not is for the back end to judge."""
    try:
        return parse_body(raw)
    except BadRequest:
        return None


def concrete(policy: Policy, model: Model) -> Model:
    """A model that chooses by task has no task here: its last choice stands for it."""
    return policy.models[model.choose[-1].model] if model.choose else model


def check_path(path: bytes) -> None:
    """Refuses paths that mean another path to the back end, and routes that change the engine."""
    lowered = path.lower()
    if b".." in lowered or b"%" in lowered or b"\\" in lowered or b"//" in lowered or b";" in lowered:
        raise NotFound("no such path")
    last = lowered.rstrip(b"/").rsplit(b"/", 1)[-1].decode("latin-1")
    if last in FORBIDDEN:
        raise NotFound("this path is not reachable through the gateway")
