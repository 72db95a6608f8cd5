"""The status that a call ends with: our own refusals, and what stands for errors and for brokers' reply codes."""

from __future__ import annotations

from typing import Any

from rocketspark.errors import FilterIllegal, NoReply, RocketSparkError, RouteNotFound, ServerError, TransportError
from rocketspark.model.limited_log import LimitedLog
from rocketspark.protocol.codes import ResponseCode
from rocketspark.proxy.wire import messages
from rocketspark.proxy.wire.enumerations import Code

log = LimitedLog("rocketspark.proxy")

OF_REMOTING: dict[int, Code] = {
    ResponseCode.SUCCESS: Code.OK,
    ResponseCode.SYSTEM_BUSY: Code.TOO_MANY_REQUESTS,
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED: Code.NOT_IMPLEMENTED,
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: Code.CONSUMER_GROUP_NOT_FOUND,
    ResponseCode.TOPIC_NOT_EXIST: Code.TOPIC_NOT_FOUND,
    ResponseCode.LMQ_QUOTA_EXCEEDED: Code.LITE_TOPIC_QUOTA_EXCEEDED,
    ResponseCode.LITE_SUBSCRIPTION_QUOTA_EXCEEDED: Code.LITE_SUBSCRIPTION_QUOTA_EXCEEDED,
}


class Refused(RocketSparkError):
    """Raised to end a call with a status other than OK. `code`: the protocol's code; the message is shown to the
    client.
    """

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code = code


def status(code: Code, message: str = "") -> Any:
    """Return a Status; without a message the code's name, as Apache's proxy has it."""
    return messages.Status(code=int(code), message=message or code.name)


def code_of_remoting(code: int) -> Code:
    """Return the status code that stands for a broker's reply code."""
    return OF_REMOTING.get(code, Code.INTERNAL_SERVER_ERROR)


def status_of(error: BaseException) -> Any:
    """Return the Status that stands for the error of a call; an unexpected error is logged."""
    if isinstance(error, Refused):
        return status(error.code, str(error))
    if isinstance(error, RouteNotFound):
        return status(Code.TOPIC_NOT_FOUND, error.remark or str(error))
    if isinstance(error, ServerError):
        return status(code_of_remoting(error.code), error.remark or str(error))
    if isinstance(error, FilterIllegal):
        return status(Code.ILLEGAL_FILTER_EXPRESSION, str(error))
    if isinstance(error, NoReply | TransportError | TimeoutError):
        return status(Code.PROXY_TIMEOUT, str(error))
    if not isinstance(error, RocketSparkError):
        log.exception("a call failed: %s", error)
    return status(Code.INTERNAL_SERVER_ERROR, f"{type(error).__name__}: {error}")
