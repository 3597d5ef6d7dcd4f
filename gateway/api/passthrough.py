"""Every path that is not routed by an estimate: relayed to a pool of the named model, by model and health only.

That is every other `/v1/` path, and vLLM's own paths outside it (embeddings, scores, ranks, tokens, `/invocations`), so
that no client is blocked by a path that this gateway does not know. The model is read from a JSON body or a multipart
form; a request without one goes to the first model that its key may use. Forms (audio) are streamed through unchanged,
see `form.py`. What must never be reachable (LoRA-loading routes, paths with `..`) is refused here; vLLM's development
routes lie outside these paths.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

from gateway.api.body import read_body
from gateway.api.core import Core, find_model, first_model
from gateway.api.dialect import MESSAGES, PASSED, Dialect
from gateway.api.downstream import Downstream
from gateway.api.form import Upload
from gateway.api.forward import Forward, admit, forward, left_behind, settle
from gateway.api.handler import Handler, Incoming, as_if_now
from gateway.api.sending import BodyFor, Plan
from gateway.errors import BadRequest, Forbidden, NotFound, NothingAvailable
from gateway.policy.schema import AccessKey, Model, Policy
from gateway.request.caps import read_needs
from gateway.request.parse import Body, parse_body, rewrite_model
from gateway.types import Decision, Need, Reason, Structure

PATHS = frozenset(
    {
        "/tokenize",
        "/detokenize",
        "/pooling",
        "/classify",
        "/score",
        "/rerank",
        "/v2/rerank",
        "/v2/embed",
        "/invocations",
    }
)
"""vLLM's paths outside `/v1/` that are passed on."""
BYTES_PER_TOKEN = 4
"""For a rough charge against a key's input limit: nothing is estimated here, and the answer may have no usage."""
FORBIDDEN = ("load_lora_adapter", "unload_lora_adapter")


class PassThrough(Handler):
    """Routed by model and health only; nothing is estimated."""

    def __init__(self, core: Core, forward: Forward = forward) -> None:
        super().__init__(core)
        self._forward = forward

    def dialect(self, path: str) -> Dialect:
        return MESSAGES if path.startswith("/v1/messages/") else PASSED

    async def serve(self, incoming: Incoming) -> None:
        check_path(incoming.scope["raw_path"])
        if incoming.head.content_type[:19].lower() == b"multipart/form-data":
            return await self._upload(incoming)
        policy = incoming.active.policy
        raw = await read_body(incoming)
        body = readable(raw) if raw else None
        asked = body.model if body else None
        model = named(policy, asked, incoming.exchange.key)
        await admit(self.core, incoming, model, len(raw) // BYTES_PER_TOKEN, 0)

        def sent(served: str) -> bytes:
            return raw if body is None or asked is None or asked == served else rewrite_model(raw, body, served)

        needs = read_needs(body.data, Structure.NONE, None) if body else frozenset[Need]()
        while True:
            try:
                return await self._forward(self.core, incoming, plan_for(incoming, model, asked, sent, needs))
            except NothingAvailable:
                if not left_behind(self.core, incoming):
                    raise
            incoming = as_if_now(self.core, incoming)
            model = named(incoming.active.policy, asked, incoming.exchange.key)
            settle(incoming.exchange, model)

    async def _upload(self, incoming: Incoming) -> None:
        policy, head, down = incoming.active.policy, incoming.head, incoming.down
        pieces = down.pieces(policy.server.max_body_bytes, head.content_length)
        upload = Upload(_then_watch(down, pieces, asyncio.current_task()), head.content_type, head.content_length)
        try:
            asked = await upload.model()
            model = named(policy, asked, incoming.exchange.key)
            size = head.content_length or upload.size
            await admit(self.core, incoming, model, size // BYTES_PER_TOKEN, 0, watch=False)
            plan = plan_for(incoming, model, asked, lambda served: upload.stream(served if asked else None))
            await self._forward(self.core, incoming, replace(plan, again=upload.again))
        finally:
            upload.close()


async def _then_watch(
    down: Downstream, pieces: AsyncIterator[bytes], task: asyncio.Task[Any] | None
) -> AsyncIterator[bytes]:
    """The pieces; after the last one, the watch for a client that leaves takes over receiving."""
    async for piece in pieces:
        yield piece
    down.watch(task)


def named(policy: Policy, asked: str | None, key: AccessKey | None = None) -> Model:
    """The model of that name, or the first that the key may use if none is named. Raises UnknownModel."""
    return concrete(policy, find_model(policy, asked, key) if asked else first_model(policy, key))


def plan_for(
    incoming: Incoming, model: Model, asked: str | None, body: BodyFor, needs: frozenset[Need] = frozenset()
) -> Plan:
    """Any of the model's pools that the key may use, in the policy's order. Raises Forbidden.

    A pool that refuses one of the `needs` is left out if there is another: `/invocations` may hold a chat.
    """
    pools = allowed(model, incoming.exchange.key)
    if needs:
        of = incoming.active.policy.pools
        pools = tuple(name for name in pools if not needs & of[name].refuses) or pools
    incoming.exchange.decision = Decision(model=model.name, pool=pools[0], reason=Reason.PASS_THROUGH, order=pools)
    return Plan(model=model, asked=asked, pools=pools, body=body)


def allowed(model: Model, key: AccessKey | None) -> tuple[str, ...]:
    """The model's pools that the key may use. Raises Forbidden if there is none."""
    if key is None or key.pools is None:
        return model.pools
    if pools := tuple(name for name in model.pools if name in key.pools):
        return pools
    raise Forbidden(f"key {key.name!r} may use no pool of `{model.name}`", param="model")


def readable(raw: bytes) -> Body | None:
    """The view of a body that is a JSON object; None for others, which the back end judges."""
    try:
        return parse_body(raw)
    except BadRequest:
        return None


def concrete(policy: Policy, model: Model) -> Model:
    """The model itself; for one that chooses by task, which is unknown here, its last choice."""
    return policy.models[model.choose[-1].model] if model.choose else model


def check_path(path: bytes) -> None:
    """Raises NotFound for paths that a back end may read as another path, and for routes that change the engine."""
    lowered = path.lower()
    if b".." in lowered or b"%" in lowered or b"\\" in lowered or b"//" in lowered or b";" in lowered:
        raise NotFound("no such path")
    last = lowered.rstrip(b"/").rsplit(b"/", 1)[-1].decode("latin-1")
    if last in FORBIDDEN:
        raise NotFound("this path is not reachable through the gateway")
