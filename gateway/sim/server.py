"""One simulated vLLM server as an ASGI app: vLLM's routes, plus `/sim/...` to set faults and read what happened."""

from __future__ import annotations

import asyncio
import hmac
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from random import Random
from typing import Any

import orjson

from gateway.profiles import Profile, match_profile
from gateway.sim.completions import Service, model_card
from gateway.sim.driver import ClientGone, Driver, Mailbox
from gateway.sim.engine import Engine, EngineSettings
from gateway.sim.errors import ApiError, invalid
from gateway.sim.faults import Faults, FaultSwitch
from gateway.sim.http import JSON, Receive, Reply, Scope, Send, header, read_body, watch
from gateway.sim.kv import BLOCK_TOKENS
from gateway.sim.metrics import Metrics
from gateway.sim.prompts import chat_prompt
from gateway.sim.request import decode_json
from gateway.sim.settings import SimSettings
from gateway.sim.surface import OtherRoutes
from gateway.sim.tokens import Vocabulary

_METRICS_TYPE = (b"content-type", b"text/plain; version=0.0.4; charset=utf-8")
_GUARDED = ("/v1", "/v2", "/inference", "/cohere")

Handler = Callable[[Scope, Receive, Reply], Awaitable[None]]


def create_app(settings: SimSettings) -> SimApp:
    """The app of one server. Raises UnknownProfile for a hardware or model without figures."""
    profile = match_profile(settings.profile, settings.model, settings.architecture)
    engine = Engine(
        profile,
        EngineSettings(
            k=settings.k,
            seed=settings.seed,
            max_num_seqs=settings.max_num_seqs,
            max_num_batched_tokens=settings.max_num_batched_tokens,
            kv_blocks=settings.kv_tokens // BLOCK_TOKENS,
        ),
    )
    metrics = Metrics(engine, settings.names[0])
    driver = Driver(engine, settings.time_scale, metrics.observe)
    return SimApp(settings, Service(settings, driver, metrics, Vocabulary()))


class SimApp:
    """The ASGI app."""

    def __init__(self, settings: SimSettings, service: Service) -> None:
        self._settings = settings
        self._service = service
        self._driver = service.driver
        self._metrics = service.metrics
        self._created = int(time.time())
        self._switch = FaultSwitch(settings.faults, Random(settings.seed))
        self._seen: dict[str, int] = {}
        self._open = 0
        self._gone = 0
        self._apply_faults()
        self._other = OtherRoutes(settings.names, self._run)
        self._routes: Mapping[str, Mapping[str, Handler]] = {
            "/v1/chat/completions": {"POST": self._completion},
            "/v1/completions": {"POST": self._completion},
            "/v1/models": {"GET": self._models},
            "/health": {"GET": self._health},
            "/ping": {"GET": self._health, "POST": self._health},
            "/version": {"GET": self._version},
            "/load": {"GET": self._load},
            "/metrics": {"GET": self._exposition},
            "/tokenize": {"POST": self._tokenize},
            "/detokenize": {"POST": self._detokenize},
            **self._other.routes(),
            "/sim/faults": {"GET": self._get_faults, "POST": self._set_faults},
            "/sim/stats": {"GET": self._stats},
        }

    @property
    def profile(self) -> Profile:
        """The speed that is played."""
        return self._driver.engine.profile

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "http":
            await self._http(scope, receive, Reply(send))

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self._other.stop()
        await self._driver.stop()
        await send({"type": "lifespan.shutdown.complete"})

    async def _http(self, scope: Scope, receive: Receive, reply: Reply) -> None:
        path, method = scope["path"], scope["method"]
        handlers = self._routes.get(path) or self._other.stored(path)
        self._open += 1
        route = path if path in self._routes else "/v1/responses/{response_id}" if handlers else "none"
        if handlers and method == "POST":
            self._seen[route] = self._seen.get(route, 0) + 1
        try:
            if not self._authorized(scope, path):
                await reply.whole(401, b'{"error":"Unauthorized"}', JSON)
            elif handlers is None:
                await reply.whole(404, b'{"detail":"Not Found"}', JSON)
            elif method not in handlers:
                await reply.whole(
                    405, b'{"detail":"Method Not Allowed"}', JSON, (b"allow", ", ".join(handlers).encode())
                )
            else:
                await handlers[method](scope, receive, reply)
        except ApiError as error:
            await reply.whole(error.status, error.body(), JSON)
        except ClientGone:
            self._gone += 1
        except asyncio.CancelledError:
            # The server's time to shut down is over; what is left is to close the connection under the answer.
            await reply.cut(receive, reset=False)
        finally:
            self._open -= 1
            self._metrics.count_response(route, method, reply.status or 499)

    def _authorized(self, scope: Scope, path: str) -> bool:
        key = self._settings.api_key
        if key is None or not path.startswith(_GUARDED):
            return True
        scheme, _, given = (header(scope, b"authorization") or "").partition(" ")
        return scheme.lower() == "bearer" and hmac.compare_digest(given.encode(), key.encode())

    async def _completion(self, scope: Scope, receive: Receive, reply: Reply) -> None:
        await self._run(scope, await read_body(receive), receive, reply)

    async def _run(self, scope: Scope, raw: bytes, receive: Receive, reply: Reply) -> None:
        faults = self._switch.draw()
        if faults.hang:
            mailbox = Mailbox(whole=False)
            await watch(receive, mailbox)
            raise ClientGone
        if faults.status is not None:
            kind = "Service Unavailable" if faults.status == 503 else "InternalServerError"
            raise ApiError(faults.status, kind, "Simulated failure.")
        await self._service.handle(scope, raw, receive, reply, faults)

    async def _models(self, scope: Scope, receive: Receive, reply: Reply) -> None:
        cards = [model_card(self._settings, name, self._created) for name in self._settings.names]
        await reply.whole(200, orjson.dumps({"object": "list", "data": cards}))

    async def _health(self, scope: Scope, receive: Receive, reply: Reply) -> None:
        await reply.whole(503 if self._switch.current.health_down or self._driver.dead else 200, b"")

    async def _version(self, scope: Scope, receive: Receive, reply: Reply) -> None:
        profile, settings = self.profile, self._settings
        simulated = {"profile": profile.name, "source": profile.source, "k": settings.k}
        about = {"version": settings.version, "simulated": {**simulated, "time_scale": settings.time_scale}}
        await reply.whole(200, orjson.dumps(about))

    async def _load(self, scope: Scope, receive: Receive, reply: Reply) -> None:
        # vLLM counts only with --enable-server-load-tracking, which is off by default.
        await reply.whole(200, b'{"server_load":0}')

    async def _exposition(self, scope: Scope, receive: Receive, reply: Reply) -> None:
        if self._switch.current.metrics_down:
            await reply.whole(500, b"Internal Server Error", (b"content-type", b"text/plain; charset=utf-8"))
        else:
            await reply.whole(200, self._metrics.render(), _METRICS_TYPE)

    async def _tokenize(self, scope: Scope, receive: Receive, reply: Reply) -> None:
        body = await self._json(scope, receive)
        if isinstance(body.get("messages"), list):
            text = chat_prompt(body["messages"], body.get("tools"))[0][0]
        elif isinstance(body.get("prompt"), str):
            text = body["prompt"]
        else:
            raise invalid("Either `prompt` or `messages` is required.")
        ids = self._service.vocabulary.encode(text)
        strings = self._service.vocabulary.strings(ids) if body.get("return_token_strs") is True else None
        answer = {
            "count": len(ids),
            "max_model_len": self._settings.max_model_len,
            "tokens": ids,
            "token_strs": strings,
        }
        await reply.whole(200, json.dumps(answer).encode())

    async def _detokenize(self, scope: Scope, receive: Receive, reply: Reply) -> None:
        tokens = (await self._json(scope, receive)).get("tokens")
        if not isinstance(tokens, list) or not all(type(token) is int for token in tokens):
            raise invalid("`tokens` must be a list of integers.", param="tokens")
        await reply.whole(200, json.dumps({"prompt": self._service.vocabulary.decode(tokens)}).encode())

    async def _json(self, scope: Scope, receive: Receive) -> Mapping[str, Any]:
        return decode_json(await read_body(receive), header(scope, b"content-type") or "")

    async def _get_faults(self, scope: Scope, receive: Receive, reply: Reply) -> None:
        await reply.whole(200, orjson.dumps(self._switch.current.as_dict()))

    async def _set_faults(self, scope: Scope, receive: Receive, reply: Reply) -> None:
        """Replaces all switches: what the body does not name is off again."""
        body = await self._json(scope, receive)
        try:
            self._switch.set(Faults.parse(body))
        except ValueError as error:
            raise invalid(str(error)) from error
        self._apply_faults()
        await reply.whole(200, orjson.dumps(self._switch.current.as_dict()))

    def _apply_faults(self) -> None:
        faults = self._switch.current
        self._driver.engine.drift = faults.drift
        self._driver.engine.slowdown = faults.slowdown
        self._driver.freeze(faults.freeze)

    async def _stats(self, scope: Scope, receive: Receive, reply: Reply) -> None:
        engine = self._driver.engine
        stats = {
            "running": engine.running,
            "waiting": engine.waiting,
            "open": self._open - 1,
            "clients_gone": self._gone,
            "seen": self._seen,
            "finished": engine.counters.finished,
            "steps": engine.counters.steps,
            "kv_blocks_used": engine.kv.used,
        }
        await reply.whole(200, orjson.dumps(stats))
