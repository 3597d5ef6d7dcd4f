"""`/v1/chat/completions` and `/v1/completions`: from a body to a planned answer, through the engine, to the wire."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gateway.sim.answer import Answer, plan, seed_of
from gateway.sim.driver import ClientGone, Driver, Mailbox
from gateway.sim.errors import ApiError, overloaded, too_long
from gateway.sim.faults import Faults
from gateway.sim.http import EVENTS, JSON, Headers, Receive, Reply, Scope, header, watch
from gateway.sim.kv import BLOCK_TOKENS
from gateway.sim.metrics import Metrics
from gateway.sim.render import DONE, Json, Renderer, request_metrics, usage
from gateway.sim.request import Limits, Request, decode_json, parse
from gateway.sim.sequence import Ask, Sequence
from gateway.sim.settings import SimSettings
from gateway.sim.tokens import Vocabulary, pieces

_LONGEST_PIECE = 9
"""Characters; a text longer than this times the context is too long without counting."""


@dataclass(slots=True)
class Choice:
    """One choice on its way out."""

    index: int
    prompt: str
    prompt_tokens: int
    answer: Answer
    sequence: Sequence
    sent: int = 0


@dataclass(slots=True)
class Service:
    """Answers completion requests with one engine."""

    settings: SimSettings
    driver: Driver
    metrics: Metrics
    vocabulary: Vocabulary

    @property
    def limits(self) -> Limits:
        settings = self.settings
        return Limits(names=settings.names, max_model_len=settings.max_model_len, drafting=settings.drafting)

    async def handle(self, scope: Scope, raw: bytes, receive: Receive, reply: Reply, faults: Faults) -> None:
        """Serves one request to its end. Raises ApiError before anything was sent, ClientGone at any time."""
        chat = "/chat/completions" in scope["path"]
        body = decode_json(raw, header(scope, b"content-type") or "")
        request = parse(body, chat=chat, limits=self.limits, batch=scope["path"].endswith("/batch"))
        self._admit(len(request.prompts) * request.n)
        mailbox = Mailbox(whole=not request.stream)
        choices: list[Choice] = []
        watcher = asyncio.create_task(watch(receive, mailbox))
        try:
            self._submit(request, mailbox, choices)
            exchange = Exchange(self, request, choices, mailbox, reply, faults, self._renderer(scope, request))
            exchange.headers = self._headers(scope)
            await exchange.run(receive, watcher)
        finally:
            watcher.cancel()
            for choice in choices:
                self.driver.abort(choice.sequence)

    def _headers(self, scope: Scope) -> Headers:
        given = header(scope, b"x-request-id")
        if given is None or not self.settings.request_id_headers:
            return []
        return [(b"x-request-id", given.encode("latin-1"))]

    def _admit(self, wanted: int) -> None:
        limit, engine = self.settings.max_num_queued_reqs, self.driver.engine
        if limit is not None and engine.running + engine.waiting + wanted > limit:
            self.metrics.rejections["max_num_queued_reqs"] += 1
            raise overloaded()

    def _renderer(self, scope: Scope, request: Request) -> Renderer:
        given = header(scope, b"x-request-id") or request.body.get("request_id") or uuid.uuid4().hex
        prefix = "chatcmpl" if request.chat else "cmpl"
        ids = self._ids if request.flag("return_token_ids") else None
        return Renderer(request.chat, f"{prefix}-{given}", int(time.time()), request.model, request.logprobs, ids)

    def _ids(self, tokens: tuple[str, ...]) -> list[int]:
        """One id a token; the end of turn is 1."""
        return [self.vocabulary.encode(token)[0] if token else 1 for token in tokens]

    def _submit(self, request: Request, mailbox: Mailbox, choices: list[Choice]) -> None:
        """Plans and queues every choice; those queued so far stand in `choices` when it raises."""
        for prompt in request.prompts:
            text = prompt if isinstance(prompt, str) else self.vocabulary.decode(prompt)
            tokens = self._counted(text) if isinstance(prompt, str) else [str(token) for token in prompt]
            if len(tokens) >= self.settings.max_model_len:
                raise too_long(self.settings.max_model_len)
            room = self.settings.max_model_len - len(tokens)
            hashes = _block_hashes(tokens, request.body.get("cache_salt"))
            for _ in range(request.n):
                index = len(choices)
                answer = plan(request, text, index, server_seed=self.settings.seed, room=room)
                ask = Ask(
                    prompt_tokens=max(1, len(tokens)),
                    output_tokens=len(answer.tokens),
                    task=answer.task,
                    finish="length" if answer.finish == "length" else "stop",
                    block_hashes=hashes,
                    seed=seed_of(request, index, self.settings.seed),
                    max_tokens=request.max_tokens,
                    n=request.n,
                )
                sequence = self.driver.submit(ask, mailbox, index)
                choices.append(Choice(index, text, ask.prompt_tokens, answer, sequence))

    def _counted(self, text: str) -> list[str]:
        if len(text) > _LONGEST_PIECE * self.settings.max_model_len:
            raise too_long(self.settings.max_model_len)
        return pieces(text)


class Exchange:
    """One request's answer going out, faults included."""

    def __init__(
        self,
        service: Service,
        request: Request,
        choices: list[Choice],
        mailbox: Mailbox,
        reply: Reply,
        faults: Faults,
        renderer: Renderer,
    ) -> None:
        self._service = service
        self._request = request
        self._choices = choices
        self._mailbox = mailbox
        self._reply = reply
        self._faults = faults
        self._render = renderer
        self._chunks = 0
        self.headers: Headers = []
        """Sent besides the content type."""
        force = service.settings.force_include_usage
        self._usage = request.include_usage or force
        self._continuous = request.continuous_usage or force

    async def run(self, receive: Receive, watcher: asyncio.Task[None]) -> None:
        """Sends the answer. Raises ClientGone."""
        try:
            if self._request.stream:
                await self._stream()
            else:
                await self._whole()
        except _CutHere:
            # From here on this call reads the disconnect itself.
            watcher.cancel()
            await self._reply.cut(receive, reset=self._faults.cut_reset)

    async def _whole(self) -> None:
        await self._mailbox.next()
        await self._mailbox.sleep(self._faults.slow_first_token)
        if self._faults.stall is not None:
            await self._mailbox.gone()
        echo = self._request.echo
        rendered = [self._render.choice(c.index, c.answer, c.prompt if echo else "") for c in self._choices]
        completion = sum(len(c.answer.tokens) for c in self._choices)
        body = self._render.whole(rendered, self._used(completion), self._metrics())
        if self._faults.wrong_json:
            body = body[: len(body) // 2]
        if self._faults.cut is not None:
            await self._reply.start(200, [(b"content-length", b"%d" % len(body)), JSON, *self.headers])
            await self._reply.part(body[: len(body) // 2])
            raise _CutHere
        await self._reply.whole(200, body, JSON, *self.headers)

    async def _stream(self) -> None:
        await self._reply.start(200, [EVENTS, *self.headers])
        await self._fault_point()
        started = False
        while any(choice.sent < len(choice.answer.tokens) for choice in self._choices):
            pending = await self._mailbox.next()
            if not started:
                started = True
                await self._mailbox.sleep(self._faults.slow_first_token)
                if self._faults.error_first:
                    error = ApiError(500, "InternalServerError", "EngineCore encountered an issue (simulated).")
                    await self._reply.end(b"data: " + error.body() + b"\n\n" + DONE)
                    return
                for choice in self._choices:
                    await self._send(self._opening(choice))
            for index, tokens in pending.items():
                await self._send(self._chunk(self._choices[index], tokens))
        await self._reply.end(self._closing())

    def _opening(self, choice: Choice) -> bytes:
        if self._request.chat:
            return self._render.role(choice.index, self._used(0) if self._continuous else None)
        return self._render.echo(choice.index, choice.prompt) if self._request.echo else b""

    def _chunk(self, choice: Choice, tokens: int) -> bytes:
        start, choice.sent = choice.sent, choice.sent + tokens
        used = self._used(choice.sent) if self._continuous else None
        return self._render.chunk(choice.index, choice.answer, start, choice.sent, used)

    def _closing(self) -> bytes:
        if not self._usage:
            return DONE
        completion = sum(choice.sent for choice in self._choices)
        return self._render.usage_chunk(self._used(completion), self._metrics()) + DONE

    async def _send(self, chunk: bytes) -> None:
        if not chunk:
            return
        if self._faults.wrong_json and self._chunks == 1:
            chunk = chunk[: len(chunk) // 2] + b"\n\n"
        await self._reply.part(chunk)
        self._chunks += 1
        await self._fault_point()

    async def _fault_point(self) -> None:
        """Cuts or falls silent once enough chunks are out."""
        if self._faults.stall is not None and self._chunks >= self._faults.stall:
            await self._mailbox.gone()
        if self._faults.cut is not None and self._chunks >= self._faults.cut:
            raise _CutHere
        if self._mailbox.closed:
            raise ClientGone

    def _used(self, completion: int) -> Json:
        prompts = self._choices[:: self._request.n]
        cached = sum(c.sequence.cached for c in prompts) if self._service.settings.prompt_tokens_details else None
        return usage(sum(choice.prompt_tokens for choice in prompts), completion, cached)

    def _metrics(self) -> Json | None:
        if not self._service.settings.per_request_metrics or len(self._choices) != 1:
            return None
        return request_metrics(self._choices[0].sequence, self._service.settings.k)


class _CutHere(Exception):
    """The fault `cut` strikes now."""


def _block_hashes(tokens: list[str], salt: object) -> tuple[int, ...]:
    """A chain of hashes over the prompt's full blocks, so that equal heads and nothing else match."""
    hashes: list[int] = []
    previous = hash(("", salt if isinstance(salt, str) else None))
    for start in range(0, len(tokens) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
        previous = hash((previous, *tokens[start : start + BLOCK_TOKENS]))
        hashes.append(previous)
    return tuple(hashes)


def model_card(settings: SimSettings, name: str, created: int) -> Mapping[str, Any]:
    """One entry of `/v1/models`."""
    return {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": "vllm",
        "root": settings.model,
        "parent": None,
        "max_model_len": settings.max_model_len,
        "permission": [],
    }
