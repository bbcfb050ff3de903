"""Errors of the connection between the driver and its tasks."""

from __future__ import annotations

from epochal.errors.base import EpochalError


class RpcError(EpochalError):
    """A peer is unreachable, or does not speak the protocol."""


class RpcTimeoutError(RpcError):
    """An endpoint did not answer in time."""

    def __init__(self, endpoint: str, address: str, seconds: float) -> None:
        super().__init__(endpoint, address, seconds)
        self.endpoint, self.address, self.seconds = endpoint, address, seconds

    def __str__(self) -> str:
        return (
            f"{self.endpoint} at {self.address} did not answer within {self.seconds} s. The driver "
            f"has ended, cannot be reached from this host, or rejected this process's key."
        )


class RpcFrameError(RpcError):
    """A frame violates the protocol.

    `fault` is `malformed`, `oversized` or `unknown_version`.
    """

    def __init__(self, reason: str, fault: str = "malformed") -> None:
        super().__init__(reason, fault)
        self.reason, self.fault = reason, fault

    def __str__(self) -> str:
        return (
            f"Rejected a frame: {self.reason}. The driver and all executors must run the same "
            f"release of Epochal."
        )


class RpcRemoteError(RpcError):
    """An endpoint answered a request with a failure."""

    def __init__(self, endpoint: str, kind: str, reason: str) -> None:
        super().__init__(endpoint, kind, reason)
        self.endpoint, self.kind, self.reason = endpoint, kind, reason

    def __str__(self) -> str:
        return f"{self.endpoint} failed: {self.kind}: {self.reason}"
