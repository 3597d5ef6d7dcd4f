"""The routes besides chat and completions: the other formats of a generation, stored responses, pooling and speech."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import orjson

from gateway.request.parse import is_true
from gateway.sim.decisions import Read, answer_of, chat_of, decided, questions_of
from gateway.sim.errors import ApiError, invalid
from gateway.sim.formats import Adapted, Json, chat_body
from gateway.sim.http import JSON, Message, Receive, Reply, Scope, header, read_body
from gateway.sim.messages import MessagesReply
from gateway.sim.pooling import ROUTES, form_fields, transcription
from gateway.sim.prompts import chat_prompt
from gateway.sim.request import decode_json
from gateway.sim.responses import ResponsesReply
from gateway.sim.tokens import pieces
from gateway.types import Api

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"

Handler = Callable[[Scope, Receive, Reply], Awaitable[None]]
Run = Callable[[Scope, bytes, Receive, Reply], Awaitable[None]]
"""Serves a chat or completions body to its end, faults included."""


class OtherRoutes:
    """Handlers by path and method."""

    def __init__(self, names: tuple[str, ...], run: Run) -> None:
        self._names = names
        self._run = run
        self._stored: dict[str, Json] = {}
        self._background: dict[str, asyncio.Task[None]] = {}

    def routes(self) -> dict[str, dict[str, Handler]]:
        return {
            "/v1/messages": {"POST": self._messages},
            "/v1/messages/count_tokens": {"POST": self._count_tokens},
            "/v1/responses": {"POST": self._responses},
            "/v1/chat/completions/batch": {"POST": self._generate},
            "/invocations": {"POST": self._invocations},
            "/v1/decisions": {"POST": self._decisions},
            "/v1/audio/transcriptions": {"POST": self._audio},
            "/v1/audio/translations": {"POST": self._audio},
            **{path: {"POST": self._pooled} for path in ROUTES},
        }

    def stored(self, path: str) -> dict[str, Handler] | None:
        """The handlers of `/v1/responses/{id}` and its `/cancel`."""
        if not path.startswith("/v1/responses/"):
            return None
        return {"POST": self._cancel} if path.endswith("/cancel") else {"GET": self._get_response}

    async def stop(self) -> None:
        for task in self._background.values():
            task.cancel()
        await asyncio.gather(*self._background.values(), return_exceptions=True)

    async def _generate(self, scope: Scope, receive: Receive, reply: Reply) -> None:
        await self._run(scope, await read_body(receive), receive, reply)

    async def _invocations(self, scope: Scope, receive: Receive, reply: Reply) -> None:
        """SageMaker's route: what it does follows from the body's fields."""
        raw = await read_body(receive)
        body = _object(scope, raw)
        if "input" in body:
            await reply.whole(200, orjson.dumps(ROUTES["/v1/embeddings"](body, self._model(body))))
            return
        path = CHAT if "messages" in body else COMPLETIONS
        await self._run({**scope, "path": path}, raw, receive, reply)

    async def _messages(self, scope: Scope, receive: Receive, reply: Reply) -> None:
        adapted = MessagesReply(reply.raw_send)
        await self._adapted(scope, receive, reply, adapted, await read_body(receive), Api.MESSAGES)

    async def _responses(self, scope: Scope, receive: Receive, reply: Reply) -> None:
        raw = await read_body(receive)
        body = _object(scope, raw)
        previous = body.get("previous_response_id")
        if previous and previous not in self._stored:
            raise _unknown(previous)
        adapted = ResponsesReply(reply.raw_send, body, self._stored)
        if is_true(body.get("background")) and not is_true(body.get("stream")):
            await self._in_background(scope, reply, adapted, raw)
        else:
            await self._adapted(scope, receive, reply, adapted, raw, Api.RESPONSES)

    async def _adapted(
        self, scope: Scope, receive: Receive, reply: Reply, adapted: Adapted, raw: bytes, api: Api
    ) -> None:
        try:
            chat = chat_body(_object(scope, raw), api)
            await self._run({**scope, "path": CHAT}, chat, receive, adapted)
        except ApiError as error:
            await Reply.whole(adapted, error.status, adapted.refusal(error), JSON)
        finally:
            reply.status = adapted.status

    async def _in_background(self, scope: Scope, reply: Reply, adapted: ResponsesReply, raw: bytes) -> None:
        """Answers at once; the response is found under its id when it is done."""
        body = _object(scope, raw)
        queued = adapted.object("queued", {}, [])

        async def nowhere(message: Message) -> None: ...

        async def forever() -> Message:
            await asyncio.Event().wait()
            raise AssertionError("never")

        silent = ResponsesReply(nowhere, body, self._stored, adapted.id)
        work = self._run({**scope, "path": CHAT}, chat_body(body, Api.RESPONSES), forever, silent)
        self._background[adapted.id] = asyncio.ensure_future(work)
        await reply.whole(200, orjson.dumps(queued))

    async def _get_response(self, scope: Scope, receive: Receive, reply: Reply) -> None:
        found = self._stored.get(scope["path"].rpartition("/")[2])
        if found is None:
            raise _unknown(scope["path"].rpartition("/")[2])
        await reply.whole(200, orjson.dumps(found))

    async def _cancel(self, scope: Scope, receive: Receive, reply: Reply) -> None:
        response_id = scope["path"].removesuffix("/cancel").rpartition("/")[2]
        found = self._stored.get(response_id)
        if found is None:
            raise _unknown(response_id)
        if found["status"] not in ("queued", "in_progress"):
            raise ApiError(400, "invalid_request_error", "Cannot cancel a synchronous response.", "response_id")
        task = self._background.pop(response_id, None)
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        found["status"] = "cancelled"
        await reply.whole(200, orjson.dumps(found))

    async def _count_tokens(self, scope: Scope, receive: Receive, reply: Reply) -> None:
        body = _object(scope, await read_body(receive))
        chat = orjson.loads(chat_body({"max_tokens": 1, **body}, Api.MESSAGES))
        text = chat_prompt(chat["messages"], chat.get("tools"))[0][0]
        await reply.whole(200, orjson.dumps({"input_tokens": len(pieces(text))}))

    async def _pooled(self, scope: Scope, receive: Receive, reply: Reply) -> None:
        body = _object(scope, await read_body(receive))
        await reply.whole(200, orjson.dumps(ROUTES[scope["path"]](body, self._model(body))))

    async def _decisions(self, scope: Scope, receive: Receive, reply: Reply) -> None:
        body = _object(scope, await read_body(receive))
        questions = questions_of(body)
        model = self._model(body)
        chats: list[Json] = []
        for question in questions:
            read = Read(reply)
            await self._run({**scope, "path": CHAT}, chat_of(body, question), receive, read)
            chats.append(read.chat())
        letters = [chat["choices"][0]["message"]["content"] for chat in chats]
        answers = [answer_of(question, letter) for question, letter in zip(questions, letters, strict=True)]
        await reply.whole(200, orjson.dumps(decided(model, answers, chats)))

    async def _audio(self, scope: Scope, receive: Receive, reply: Reply) -> None:
        fields = form_fields(await read_body(receive), header(scope, b"content-type") or "")
        self._model({"model": fields.get("model", b"").decode()})
        heard = transcription(fields)
        if fields.get("response_format") == b"text":
            await reply.whole(200, heard["text"].encode(), (b"content-type", b"text/plain; charset=utf-8"))
        else:
            await reply.whole(200, orjson.dumps(heard))

    def _model(self, body: Mapping[str, Any]) -> str:
        model = body.get("model") or self._names[0]
        if model not in self._names:
            raise ApiError(404, "NotFoundError", f"The model `{model}` does not exist.", "model")
        return str(model)


def _object(scope: Scope, raw: bytes) -> Mapping[str, Any]:
    return decode_json(raw, header(scope, b"content-type") or "")


def _unknown(response_id: object) -> ApiError:
    if not isinstance(response_id, str):
        return invalid("`previous_response_id` must be a string.")
    return ApiError(404, "invalid_request_error", f"Response with id '{response_id}' not found.", "response_id")
