"""Envoy's external processing messages, and what of them has a meaning here. The only module that knows protobuf.

`read` turns a ProcessingRequest into an event; the other functions make the ProcessingResponses that are due.
Sources: envoy/service/ext_proc/v3/external_processor.proto, and for the names under which endpoints travel the
Endpoint Picker Protocol (proposal 004 of kubernetes-sigs/gateway-api-inference-extension), version 1.0.0.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from envoy.config.core.v3 import base_pb2 as core_pb2
from envoy.service.ext_proc.v3 import external_processor_pb2 as ext_proc_pb2

from gateway.upstream.client import Headers

SERVICE = "envoy.service.ext_proc.v3.ExternalProcessor"
DESTINATION = "x-gateway-destination-endpoint"
"""Header and metadata key of the picked endpoints: `ip:port`, or several in order of preference."""
NAMESPACE = "envoy.lb"
SUBSET_NAMESPACE, SUBSET = "envoy.lb.subset_hint", "x-gateway-destination-endpoint-subset"
SERVED = "x-gateway-destination-endpoint-served"
PIECE_BYTES = 62_000
"""Most of a body in one message; the protocol recommends at most 64 KiB."""

_OVERWRITE = core_pb2.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD

serialize = ext_proc_pb2.ProcessingResponse.SerializeToString
deserialize = ext_proc_pb2.ProcessingRequest.FromString


class BodyMode(Enum):
    """How Envoy sends a body; the values are the protocol's."""

    NONE = 0
    STREAMED = 1
    BUFFERED = 2
    BUFFERED_PARTIAL = 3
    FULL_DUPLEX_STREAMED = 4
    GRPC = 5


@dataclass(frozen=True, slots=True)
class Modes:
    """What Envoy's filter is configured to send."""

    request: BodyMode
    response: BodyMode


class Side(Enum):
    """Which half of an HTTP exchange a message is about."""

    REQUEST = "request"
    RESPONSE = "response"


@dataclass(frozen=True, slots=True)
class RequestHead:
    headers: Headers
    """Names in lower case, Envoy's pseudo headers (`:path`) among them."""
    ended: bool
    """Whether no body follows."""
    subset: frozenset[str] | None
    """The only addresses that may be picked; None where the data plane does not say."""
    modes: Modes | None
    """None where the data plane does not say."""
    observes: bool
    """Whether the data plane wants no answers at all."""


@dataclass(frozen=True, slots=True)
class ResponseHead:
    status: int
    headers: Headers
    ended: bool
    served: str | None
    """The address that served the request, where the data plane says so."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Part of a body; which one is clear from the order of things."""

    side: Side
    body: bytes
    ended: bool


@dataclass(frozen=True, slots=True)
class Trailers:
    side: Side


Event = RequestHead | ResponseHead | Piece | Trailers


@dataclass(frozen=True, slots=True)
class Changes:
    """What is to happen to a head."""

    put: Sequence[tuple[bytes, bytes]] = ()
    drop: Sequence[str] = ()
    destination: str | None = field(default=None, kw_only=True)
    """Where the request goes; it stands in the header and in the metadata alike."""


NO_CHANGES = Changes()


def read(message: Any) -> Event | None:
    """The event in a ProcessingRequest; None for a kind of message that is not known here."""
    kind = message.WhichOneof("request")
    if kind == "response_body" or kind == "request_body":
        part = message.response_body if kind == "response_body" else message.request_body
        return Piece(Side.RESPONSE if kind == "response_body" else Side.REQUEST, part.body, part.end_of_stream)
    if kind == "request_headers":
        return _request_head(message)
    if kind == "response_headers":
        headers = _headers(message.response_headers.headers)
        status = next((int(value) for name, value in headers if name == b":status" and value.isdigit()), 0)
        served = _metadata(message, NAMESPACE, SERVED)
        shown = served.string_value if served is not None and served.string_value else None
        return ResponseHead(status, headers, message.response_headers.end_of_stream, shown)
    if kind == "request_trailers" or kind == "response_trailers":
        return Trailers(Side.REQUEST if kind == "request_trailers" else Side.RESPONSE)
    return None


def head_answer(side: Side, changes: Changes = NO_CHANGES) -> Any:
    """The answer to a head."""
    common = _common(changes, clear_route=side is Side.REQUEST)
    part = ext_proc_pb2.HeadersResponse(response=common)
    if side is Side.RESPONSE:
        return ext_proc_pb2.ProcessingResponse(response_headers=part)
    return _with_destination(ext_proc_pb2.ProcessingResponse(request_headers=part), changes)


def body_answer(side: Side, changes: Changes = NO_CHANGES, body: bytes | None = None) -> Any:
    """The answer to a body where each message has one: `body` replaces it, empty removes it, None leaves it."""
    common = _common(changes, clear_route=side is Side.REQUEST)
    if body:
        common.body_mutation.body = body
    elif body is not None:
        common.body_mutation.clear_body = True
    part = ext_proc_pb2.BodyResponse(response=common)
    if side is Side.RESPONSE:
        return ext_proc_pb2.ProcessingResponse(response_body=part)
    return _with_destination(ext_proc_pb2.ProcessingResponse(request_body=part), changes)


def piece(side: Side, body: bytes, *, ended: bool) -> Any:
    """A part of a body in the full duplex mode, where bodies go on in parts of our own making."""
    streamed = ext_proc_pb2.StreamedBodyResponse(body=body, end_of_stream=ended)
    mutation = ext_proc_pb2.BodyMutation(streamed_response=streamed)
    part = ext_proc_pb2.BodyResponse(response=ext_proc_pb2.CommonResponse(body_mutation=mutation))
    if side is Side.RESPONSE:
        return ext_proc_pb2.ProcessingResponse(response_body=part)
    return ext_proc_pb2.ProcessingResponse(request_body=part)


def trailers_answer(side: Side) -> Any:
    part = ext_proc_pb2.TrailersResponse()
    if side is Side.RESPONSE:
        return ext_proc_pb2.ProcessingResponse(response_trailers=part)
    return ext_proc_pb2.ProcessingResponse(request_trailers=part)


def immediate(status: int, headers: Headers, body: bytes) -> Any:
    """An answer to the client in the back end's stead. Its length is Envoy's to say."""
    made = ext_proc_pb2.ImmediateResponse(body=body)
    made.status.code = status
    _put(made.headers, ((name, value) for name, value in headers if name != b"content-length"))
    return ext_proc_pb2.ProcessingResponse(immediate_response=made)


def _request_head(message: Any) -> RequestHead:
    hint = _metadata(message, SUBSET_NAMESPACE, SUBSET)
    subset = None
    if hint is not None:
        # A list by the protocol; some data planes send the addresses as one text.
        values = [row.string_value for row in hint.list_value.values] or hint.string_value.split(",")
        subset = frozenset(value.strip() for value in values if value.strip())
    modes = None
    if message.HasField("protocol_config"):
        config = message.protocol_config
        modes = Modes(BodyMode(config.request_body_mode), BodyMode(config.response_body_mode))
    head = message.request_headers
    return RequestHead(_headers(head.headers), head.end_of_stream, subset, modes, message.observability_mode)


def _headers(found: Any) -> Headers:
    return [(row.key.lower().encode("latin-1"), row.raw_value or row.value.encode()) for row in found.headers]


def _metadata(message: Any, namespace: str, key: str) -> Any:
    spaces = message.metadata_context.filter_metadata
    if namespace not in spaces or key not in spaces[namespace].fields:
        return None
    return spaces[namespace].fields[key]


def _common(changes: Changes, *, clear_route: bool) -> Any:
    common = ext_proc_pb2.CommonResponse()
    if changes.destination is not None:
        _put(common.header_mutation, [(DESTINATION.encode(), changes.destination.encode())])
        # Routes may match on headers that were changed here.
        common.clear_route_cache = clear_route
    if changes.put:
        _put(common.header_mutation, changes.put)
    if changes.drop:
        common.header_mutation.remove_headers.extend(changes.drop)
    return common


def _put(mutation: Any, headers: Iterable[tuple[bytes, bytes]]) -> None:
    for name, value in headers:
        row = mutation.set_headers.add(append_action=_OVERWRITE)
        row.header.key = name.decode("latin-1")
        row.header.raw_value = value


def _with_destination(response: Any, changes: Changes) -> Any:
    if changes.destination is not None:
        inner = response.dynamic_metadata.fields[NAMESPACE].struct_value
        inner.fields[DESTINATION].string_value = changes.destination
    return response
