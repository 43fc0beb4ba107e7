"""Every error that agentspec raises on purpose.

    AgentspecError
    ├── ConfigError (ValueError)            a setting is unknown, of the wrong type or out of range
    ├── TokenError (ValueError)             an array of tokens has the wrong dtype, shape or values
    ├── RequestError (ValueError)           a request is used against its life cycle
    │   ├── DuplicateRequestError           opened twice
    │   └── UnknownRequestError (KeyError)  never opened, or closed already
    ├── SegmentError (ValueError)           a file or message is not a usable segment
    ├── StoreError (RuntimeError)           a store answers with an error
    │   ├── StoreUnavailableError           it does not answer; trying again later may help
    │   ├── StoreResetError                 it lost its contents
    │   ├── BrokenLogError                  some logs cannot be appended to
    │   └── RecordError (ValueError)        a record in it is damaged, of a newer format, foreign or encrypted
    ├── InstallationError (ImportError)     files of another project are mixed with agentspec's
    ├── DeviceError (RuntimeError)          a device's driver refuses a call
    ├── UnsupportedError (RuntimeError)     the host uses a combination of features that agentspec refuses
    ├── ManagementError (RuntimeError)      a request to manage a running server is refused, or its job failed
    └── ServerError (RuntimeError)          a server that agentspec started or called failed

Each class also inherits the standard error that it stands for, so callers that do not know agentspec can catch it.
A message names the requirement, the actual value and the remedy. All errors are picklable, because they are passed
from scheduler processes to the launcher.
"""

from __future__ import annotations

from collections.abc import Iterable


class AgentspecError(Exception):
    """Root of all errors raised by agentspec."""


class ConfigError(AgentspecError, ValueError):
    """A setting is unknown, of the wrong type or out of range."""


class TokenError(AgentspecError, ValueError):
    """An array of tokens has the wrong dtype, shape or values."""


class RequestError(AgentspecError, ValueError):
    """A request is used against its life cycle."""


class DuplicateRequestError(RequestError):
    """A request id is opened while a request of that id is still open."""


class UnknownRequestError(RequestError, KeyError):
    """A request id was never opened, or is already closed."""

    def __str__(self) -> str:
        # KeyError would print the repr of the message.
        return Exception.__str__(self)


class SegmentError(AgentspecError, ValueError):
    """A file or message is not a usable segment: it is unreadable, damaged, of a newer format, or foreign."""


class StoreError(AgentspecError, RuntimeError):
    """A store answers with an error."""


class StoreUnavailableError(StoreError):
    """A store does not answer at present; trying again later may help."""


class StoreResetError(StoreError):
    """A store lost its contents: it was flushed, or replaced by an older copy."""


class BrokenLogError(StoreError):
    """Some logs cannot be appended to, because the store holds other data in their place.

    `namespaces` names the namespaces that these logs belong to. All other logs have been appended to as requested.
    """

    def __init__(self, message: str, namespaces: Iterable[str] = ()) -> None:
        super().__init__(message, tuple(namespaces))

    @property
    def namespaces(self) -> tuple[str, ...]:
        found: tuple[str, ...] = self.args[1]
        return found

    def __str__(self) -> str:
        return str(self.args[0])


class RecordError(StoreError, ValueError):
    """Bytes in a store are not a usable record.

    `fault` gives the reason: "damaged"; "newer", in a format that a later version writes; "foreign", written for
    another model, tokenizer, namespace or place; or "encrypted", with a key other than the given one.
    """

    def __init__(self, message: str, fault: str = "damaged") -> None:
        super().__init__(message, fault)
        self.fault = fault

    @property
    def is_readable_elsewhere(self) -> bool:
        """Whether a replica of a later version, or with another key, may read the bytes."""
        return self.fault in ("newer", "encrypted")

    def __str__(self) -> str:
        return str(self.args[0])


class InstallationError(AgentspecError, ImportError):
    """Files of another project are mixed with agentspec's files, so neither project works."""


class DeviceError(AgentspecError, RuntimeError):
    """A device's driver refuses a call."""


class UnsupportedError(AgentspecError, RuntimeError):
    """The host uses a combination of features that agentspec refuses."""


class ManagementError(AgentspecError, RuntimeError):
    """A request to manage a running server is refused, or its job failed; `status` is the HTTP status code."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message, status)
        self.status = status

    def __str__(self) -> str:
        return str(self.args[0])


class ServerError(AgentspecError, RuntimeError):
    """A server that agentspec started or called failed."""
