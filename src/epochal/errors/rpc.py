"""What can go wrong between driver and tasks."""

from __future__ import annotations

from epochal.errors.base import EpochalError


class RpcError(EpochalError):
    """A peer cannot be reached, or does not speak as one of ours."""


class RpcTimeoutError(RpcError):
    """An endpoint did not answer in time."""

    def __init__(self, endpoint: str, address: str, seconds: float) -> None:
        super().__init__(endpoint, address, seconds)
        self.endpoint, self.address, self.seconds = endpoint, address, seconds

    def __str__(self) -> str:
        return (
            f"{self.endpoint} at {self.address} did not answer within {self.seconds} s. The driver "
            f"is gone, cannot be reached from here, or does not know this process's key."
        )


class RpcFrameError(RpcError):
    """A frame is not one that this protocol allows.

    `fault` says how: `malformed`, `oversized` or `unknown_version`.
    """

    def __init__(self, reason: str, fault: str = "malformed") -> None:
        super().__init__(reason, fault)
        self.reason, self.fault = reason, fault

    def __str__(self) -> str:
        return f"Refused a frame: {self.reason}. Driver and executors must run one release."


class RpcRemoteError(RpcError):
    """An endpoint answered that it could not do what was asked."""

    def __init__(self, endpoint: str, kind: str, reason: str) -> None:
        super().__init__(endpoint, kind, reason)
        self.endpoint, self.kind, self.reason = endpoint, kind, reason

    def __str__(self) -> str:
        return f"{self.endpoint} failed: {self.kind}: {self.reason}"
