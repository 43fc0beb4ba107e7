"""Maps the errors of redis-py to those of a store."""

from __future__ import annotations

import ssl

from agentspec.errors import StoreError, StoreUnavailableError

# Keyed by the name of the redis-py class. A class that is missing here has the meaning of its nearest base class.
MEANINGS = {
    # Temporary: a later attempt may succeed.
    "ConnectionError": "unavailable",
    "TimeoutError": "unavailable",
    "BusyLoadingError": "unavailable",
    "MaxConnectionsError": "unavailable",
    "ClusterDownError": "unavailable",
    "ClusterError": "unavailable",
    "MasterDownError": "unavailable",
    "TryAgainError": "unavailable",
    "AskError": "unavailable",
    "MovedError": "unavailable",
    "SlotNotCoveredError": "unavailable",
    "OutOfMemoryError": "full",
    "ReadOnlyError": "readonly",
    "WatchError": "unavailable",
    # These need another password or permission.
    "AuthenticationError": "password",
    "AuthorizationError": "password",
    "AuthenticationWrongNumberOfArgsError": "password",
    "ExternalAuthProviderError": "password",
    "NoPermissionError": "permission",
    # The server refused the command; the text begins with an error code.
    "ResponseError": "answer",
    "ExecAbortError": "answer",
    "RedisError": "answer",
    "InvalidResponse": "answer",
    "DataError": "answer",
    "ClusterCrossSlotError": "answer",
    "CrossSlotTransactionError": "answer",
    "RedisClusterException": "answer",
    "InvalidPipelineStack": "answer",
    # Errors of features that no store uses.
    "PubSubError": "answer",
    "NoScriptError": "answer",
    "ModuleError": "answer",
    "NoSuchFieldsetError": "answer",
    "LockError": "answer",
    "LockNotOwnedError": "answer",
    "ChildDeadlockedError": "answer",
    "IncorrectPolicyType": "answer",
}

# Codes of temporary errors for which some release of redis-py has no class.
_LATER = (
    "MISCONF", "NOREPLICAS", "BUSY", "UNBLOCKED", "LOADING", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "MOVED ", "ASK ",
)  # fmt: skip


def store_error(error: Exception, url: str, user: str | None, timeout: float) -> StoreError | None:
    """Maps an error of redis-py or the system to a store's error; returns None for any other error.

    The message quotes the server's answer but never a command, because commands contain users' text.
    """
    if isinstance(error, ssl.SSLError) or "CERTIFICATE_VERIFY_FAILED" in str(error):
        return _tls_error(error, url)
    if isinstance(error, OSError):
        return StoreUnavailableError(f"the store {url} cannot be reached: {error}")
    meaning = next((MEANINGS[each.__name__] for each in type(error).__mro__ if each.__name__ in MEANINGS), None)
    if meaning is None or not type(error).__module__.startswith("redis."):
        return None
    text = str(error)
    # The answer to a refused EXEC has another form than other refusals.
    if "NOPERM" in text:
        meaning = "permission"
    if meaning == "answer":
        if text.startswith(_LATER):
            return StoreUnavailableError(f"the store {url} cannot do this now: {text}")
        if text.startswith("WRONGTYPE"):
            return StoreError(f"the store {url} holds something else under a key of agentspec's: {text}")
        return StoreError(f"the store {url} answered: {text}")
    if meaning == "full":
        return StoreUnavailableError(f"the store {url} is full ({text}): raise its maxmemory or remove something")
    if meaning == "readonly":
        return StoreUnavailableError(
            f"the store {url} takes no writes, as it is a read-only replica: name its master, or its sentinels"
        )
    if meaning == "password":
        return StoreError(
            f"the store {url} refuses the user {user or 'default'!r} with the password given, or with none ({text}): name "
            "the user in the URL, and give the password in AGENTSPEC_STORE_PASSWORD or in a file"
        )
    if meaning == "permission":
        return StoreError(
            f"the store {url} does not let the user {user or 'default'!r} do all that agentspec does ({text}): "
            "`agentspec store acl USER` prints the rules that it needs"
        )
    if "WRONG_VERSION_NUMBER" in text or "SSL" in text:
        return _tls_error(error, url)
    if isinstance(error, TimeoutError) or type(error).__name__ == "TimeoutError":
        return StoreUnavailableError(f"the store {url} did not answer within {timeout:g} s")
    # What a server does that speaks TLS alone.
    hint = "; if it speaks TLS, name it as rediss://" if url.startswith("redis://") and "reset by peer" in text else ""
    return StoreUnavailableError(f"the store {url} cannot be reached: {text}{hint}")


def _tls_error(error: Exception, url: str) -> StoreError:
    text = str(error)
    if "CERTIFICATE_VERIFY_FAILED" in text or isinstance(error, ssl.SSLCertVerificationError):
        return StoreError(
            f"the certificate of the store {url} is not trusted ({text}): name the file of its authority's "
            "certificate as ssl_ca_certs, and the host as in its own"
        )
    if "WRONG_VERSION_NUMBER" in text:
        return StoreError(f"the store {url} does not speak TLS on this port ({text})")
    if "ALERT" in text.upper():
        return StoreError(f"the store {url} refuses this TLS connection; it may want ssl_certfile ({text})")
    return StoreUnavailableError(f"the TLS connection to the store {url} failed: {text}")
