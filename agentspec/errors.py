"""Every error that agentspec raises on purpose.

    AgentspecError
    ├── ConfigError (ValueError)            a setting is unknown, of the wrong type or out of range
    ├── TokenError (ValueError)             an array of tokens has the wrong dtype, shape or values
    ├── RequestError (ValueError)           a request is used against its life cycle
    │   ├── DuplicateRequestError           opened twice
    │   └── UnknownRequestError (KeyError)  never opened, or closed already
    ├── SegmentError (ValueError)           a file or message is no segment that can be used here
    ├── StoreError (RuntimeError)           a store answers with an error
    │   ├── StoreUnavailableError           it does not answer, or not now; trying again later may help
    │   ├── StoreResetError                 it lost its contents
    │   ├── BrokenLogError                  some logs cannot be appended to
    │   └── RecordError (ValueError)        bytes in it are damaged, of a newer format, foreign or need a key
    ├── InstallationError (ImportError)     files of another project are mixed with agentspec's
    ├── UnsupportedError (RuntimeError)     the host runs in a combination that agentspec refuses
    ├── ManagementError (RuntimeError)      a request to manage a running server is refused, or its job failed
    └── ServerError (RuntimeError)          a server that agentspec started or called did not do its part

Each class also inherits the standard error it stands for, so callers that know nothing of agentspec can
catch it. Messages say what was required, what was got and what to do; all are picklable, because they
cross from scheduler processes to the launcher.
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
    """A request id was never opened, or is closed already."""

    def __str__(self) -> str:
        # KeyError prints the repr of its argument; a message is meant to be read.
        return Exception.__str__(self)


class SegmentError(AgentspecError, ValueError):
    """A file or message is no segment that can be used here: unreadable, damaged, of a newer format, or foreign."""


class StoreError(AgentspecError, RuntimeError):
    """A store answers with an error."""


class StoreUnavailableError(StoreError):
    """A store does not answer, or not now; trying again later may help."""


class StoreResetError(StoreError):
    """A store lost its contents: it was flushed, or replaced by an older copy."""


class BrokenLogError(StoreError):
    """Something else stands where logs should be: they cannot be appended to. Appended to all others was what was to be.

    `namespaces` says whose logs they are.
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
    """Bytes in a store are no record that can be used here.

    `fault` says why: "damaged"; "newer", of a format that a later version writes; "foreign", written for another model,
    tokenizer, namespace or place; or "encrypted", with a key that is not the one given.
    """

    def __init__(self, message: str, fault: str = "damaged") -> None:
        super().__init__(message, fault)
        self.fault = fault

    def __str__(self) -> str:
        return str(self.args[0])


class InstallationError(AgentspecError, ImportError):
    """Files of another project are mixed with agentspec's, so that neither works."""


class UnsupportedError(AgentspecError, RuntimeError):
    """The host runs in a combination of features that agentspec refuses."""


class ManagementError(AgentspecError, RuntimeError):
    """A request to manage a running server is refused, or the job that it started failed; `status` is HTTP's."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message, status)
        self.status = status

    def __str__(self) -> str:
        return str(self.args[0])


class ServerError(AgentspecError, RuntimeError):
    """A server that agentspec started or called did not do its part."""
