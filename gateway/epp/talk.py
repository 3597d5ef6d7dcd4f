"""One HTTP exchange as Envoy tells it on one stream, in the form in which the gateway's handlers take requests (ASGI).

What a handler sends while the request is here becomes an immediate answer to the client. Once the request has gone to
a back end, what is sent is what the response becomes, part by part.
"""

from __future__ import annotations

from gateway.api.downstream import Message, Scope
from gateway.epp.inbox import Inbox
from gateway.epp.sides import (
    Body,
    BufferedRequest,
    DuplexRequest,
    DuplexResponse,
    RequestSide,
    ResponseSide,
    TurnResponse,
    Write,
)
from gateway.epp.wire import (
    BodyMode,
    Changes,
    Modes,
    RequestHead,
    ResponseHead,
    Side,
    Trailers,
    head_answer,
    immediate,
    trailers_answer,
)
from gateway.upstream.client import Headers

WHOLE = frozenset({BodyMode.BUFFERED, BodyMode.BUFFERED_PARTIAL})
DUPLEX = BodyMode.FULL_DUPLEX_STREAMED


class NotSpoken(Exception):
    """The filter is configured to send what no decision can be made from; the message says what to change."""


class Talk:
    """Made from the first message of a stream."""

    def __init__(self, head: RequestHead, inbox: Inbox, write: Write, assumed: Modes) -> None:
        """`assumed` holds for a data plane that does not say how it is configured. Raises NotSpoken."""
        self.head = head
        self.modes = head.modes or assumed
        self._inbox = inbox
        self._write = write
        if head.observes:
            raise NotSpoken("observability_mode is on: the data plane would not take a decision")
        if self.modes.request is not DUPLEX and self.modes.request not in WHOLE:
            raise NotSpoken(
                f"request_body_mode is {self.modes.request.name}; a decision needs the body: "
                "FULL_DUPLEX_STREAMED, or BUFFERED"
            )
        make = DuplexRequest if self.modes.request is DUPLEX else BufferedRequest
        self._request: RequestSide = make(head, inbox, write)
        self._had_all = False
        self._response: ResponseSide | None = None
        self._refusal: tuple[int, Headers, list[bytes]] | None = None

    def scope(self) -> Scope:
        """The request's head as an ASGI scope."""
        fields = dict(self.head.headers)
        target = fields.get(b":path", b"/")
        path, _, query = target.partition(b"?")
        return {
            "type": "http",
            "method": fields.get(b":method", b"GET").decode("latin-1"),
            "path": path.decode("latin-1"),
            "raw_path": path,
            "query_string": query,
            "headers": [row for row in self.head.headers if not row[0].startswith(b":")],
        }

    async def receive(self) -> Message:
        """The request's body, and after it word of the client's leaving."""
        if self._had_all:
            await self._inbox.left.wait()
            return {"type": "http.disconnect"}
        part = (b"", True) if self.head.ended else await self._request.next()
        if part is None:
            return {"type": "http.disconnect"}
        body, self._had_all = part
        return {"type": "http.request", "body": body, "more_body": not self._had_all}

    async def send(self, message: Message) -> None:
        """An answer of the gateway's own while the request is here, else part of the response."""
        response = self._response
        if message["type"] == "http.response.start":
            if response is None:
                self._refusal = (message["status"], message["headers"], [])
            else:
                await response.start(Changes(message["headers"]))
            return
        body, more = message.get("body", b""), message.get("more_body", False)
        if response is not None:
            await (response.piece(body) if more else response.end(body))
        elif self._refusal is not None:
            status, headers, parts = self._refusal
            parts.append(body)
            if not more:
                await self._write(immediate(status, headers, b"".join(parts)))

    async def go(self, changes: Changes, body: Body) -> None:
        """The request goes to its destination."""
        await self._request.go(changes, body)

    async def answered(self) -> ResponseHead:
        """The head of the response, once it has come."""
        while True:
            event = await self._inbox.next()
            if isinstance(event, ResponseHead):
                return event
            if isinstance(event, Trailers) and event.side is Side.REQUEST:
                # In the buffered mode they come after the body's answer.
                await self._write(trailers_answer(Side.REQUEST))

    def response(self, head: ResponseHead, own: Headers) -> ResponseSide | None:
        """The response as the relay takes it; None where its body is not sent here. `own` headers are added to it."""
        mode = self.modes.response
        if mode is BodyMode.NONE:
            return None
        if mode is DUPLEX:
            self._response = DuplexResponse(head, self._inbox, self._write)
        else:
            self._response = TurnResponse(head, self._inbox, self._write, mode, Changes(own))
        return self._response

    async def answer_head_only(self, own: Headers) -> None:
        """The response's head, where its body is none of ours."""
        await self._write(head_answer(Side.RESPONSE, Changes(own)))

    def take_back(self) -> None:
        """The relay has failed before anything went to the client: what is sent from now on answers in its stead."""
        self._response = None
