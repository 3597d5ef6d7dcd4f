"""Every error that the gateway itself makes, as one tree. A back end's own errors pass through and are not here.

GatewayError                     .status .type .code .param .retry_after .body()
  BadRequest              400    the body cannot be understood, as far as we need to understand it
  Unauthorized            401    no or unknown API key
  Forbidden               403    the key may not do this
  UnknownModel            404    no such model in the policy
  NotFound                404    no such path
  MethodNotAllowed        405    the path takes another method
  RequestTimeout          408    the client was too slow to send its body
  BodyTooLarge            413    over server.max_body_bytes
  UnsupportedEncoding     415    a body compressed in a way that is not supported here
  HeadersTooLarge         431    over the header limit
  TooManyRequests         429    a limit of the key or a full queue (Retry-After)
  UpstreamError           502    connection to a back end failed; subclasses say how
    ConnectFailed         502    no connection: nothing was sent
    ConnectionLost        502    cut before or amid the answer
    BadUpstreamResponse   502    bytes that are not HTTP
  NothingAvailable        503    no endpoint can take the request (Retry-After)
  UpstreamTimeout         504    connect, first byte, idle or total time ran out
"""

from __future__ import annotations

import json


class GatewayError(Exception):
    """An error made by the gateway, in the shape that OpenAI SDKs expect."""

    status = 500
    type = "internal_error"
    code = "internal_error"

    def __init__(self, message: str, *, param: str | None = None, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after = retry_after
        """Whole seconds for a `Retry-After` header."""

    def object(self) -> dict[str, object]:
        """The OpenAI error object, `{"error": {"message", "type", "param", "code"}}`."""
        inner = {"message": self.message, "type": self.type, "param": self.param, "code": self.code}
        return {"error": inner}

    def body(self) -> bytes:
        # ASCII escapes, so that a lone surrogate quoted from a client's body cannot break the encoding.
        return json.dumps(self.object()).encode()


class BadRequest(GatewayError):
    status = 400
    type = "invalid_request_error"
    code = "bad_request"


class Unauthorized(GatewayError):
    status = 401
    type = "authentication_error"
    code = "invalid_api_key"


class Forbidden(GatewayError):
    status = 403
    type = "permission_error"
    code = "forbidden"


class NotFound(GatewayError):
    status = 404
    type = "invalid_request_error"
    code = "not_found"


class UnknownModel(NotFound):
    code = "model_not_found"


class MethodNotAllowed(GatewayError):
    status = 405
    type = "invalid_request_error"
    code = "method_not_allowed"
    allow = "POST, OPTIONS"
    """The `Allow` header: what the path takes."""


class RequestTimeout(GatewayError):
    status = 408
    type = "timeout_error"
    code = "request_timeout"


class BodyTooLarge(GatewayError):
    status = 413
    type = "invalid_request_error"
    code = "body_too_large"


class UnsupportedEncoding(GatewayError):
    status = 415
    type = "invalid_request_error"
    code = "unsupported_encoding"


class HeadersTooLarge(GatewayError):
    status = 431
    type = "invalid_request_error"
    code = "headers_too_large"


class TooManyRequests(GatewayError):
    status = 429
    type = "rate_limit_error"
    code = "rate_limit_exceeded"


class InternalError(GatewayError):
    """A fault of ours. The message never quotes the request."""


class UpstreamError(GatewayError):
    status = 502
    type = "upstream_error"
    code = "upstream_error"


class ConnectFailed(UpstreamError):
    code = "connect_failed"


class ConnectionLost(UpstreamError):
    code = "connection_lost"


class BadUpstreamResponse(UpstreamError):
    code = "bad_upstream_response"


class NothingAvailable(GatewayError):
    status = 503
    type = "service_unavailable"
    code = "nothing_available"


class UpstreamTimeout(GatewayError):
    status = 504
    type = "timeout_error"
    code = "upstream_timeout"

    def __init__(self, message: str, *, phase: str) -> None:
        super().__init__(message)
        self.phase = phase
        """`connect`, `first_byte`, `idle` or `total`."""


def clear_tracebacks(error: BaseException) -> None:
    """Clears `__traceback__` of a handled error and of the errors in its `__cause__` and `__context__` chains.

    A frame of a traceback often refers to the error itself. That reference cycle would keep the request's body and
    the frame's other locals alive until the next garbage collection.
    """
    chain: list[BaseException | None] = [error]
    while chain:
        if (one := chain.pop()) is not None and one.__traceback__ is not None:
            one.__traceback__ = None
            chain += (one.__cause__, one.__context__)
