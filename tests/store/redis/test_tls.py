"""The store in Redis over TLS. A proxy in front of the server speaks TLS."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
import trustme
from store_case import SCOPE, A, data, drain
from tcp_proxy import Proxy

from agentspec.errors import ConfigError, StoreError, StoreUnavailableError
from agentspec.evals.micro.store.redis_server import RedisServer
from agentspec.store import open_store
from agentspec.store.redis.errors import store_error

pytestmark = pytest.mark.redis


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def trusted(authority: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trusted") / "ca.pem"
    authority.cert_pem.write_to_path(str(path))
    return path


@pytest.fixture
def proxy(authority: trustme.CA, redis_server: RedisServer) -> Iterator[Proxy]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    with Proxy(redis_server.port, context) as proxy:
        yield proxy


def test_a_trusted_server_is_used(proxy: Proxy, trusted: Path) -> None:
    store = open_store(f"rediss://127.0.0.1:{proxy.port}?ssl_ca_certs={trusted}", SCOPE)
    reader = store.reader()
    store.append([(A, b"1")])
    assert data(drain(reader)) == [b"1"]
    assert store.url == f"rediss://127.0.0.1:{proxy.port}"
    reader.close()
    store.close()


def test_another_authority_is_not_trusted(proxy: Proxy, tmp_path: Path) -> None:
    other = tmp_path / "other.pem"
    trustme.CA().cert_pem.write_to_path(str(other))
    for options in (f"?ssl_ca_certs={other}", ""):
        with pytest.raises(StoreError, match=r"not trusted.*ssl_ca_certs") as caught:
            open_store(f"rediss://127.0.0.1:{proxy.port}{options}", SCOPE)
        assert not isinstance(caught.value, StoreUnavailableError)


def test_a_certificate_is_of_its_host_only(proxy: Proxy, trusted: Path) -> None:
    with pytest.raises(StoreError, match=r"not trusted"):
        open_store(f"rediss://localhost:{proxy.port}?ssl_ca_certs={trusted}", SCOPE)


def test_a_client_s_certificate_is_shown(
    authority: trustme.CA, redis_server: RedisServer, trusted: Path, tmp_path: Path
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.configure_trust(context)
    context.verify_mode = ssl.CERT_REQUIRED
    mine = tmp_path / "mine.pem"
    authority.issue_cert("client.test").private_key_and_cert_chain_pem.write_to_path(str(mine))
    with Proxy(redis_server.port, context) as proxy:
        base = f"rediss://127.0.0.1:{proxy.port}?ssl_ca_certs={trusted}"
        open_store(f"{base}&ssl_certfile={mine}&ssl_keyfile={mine}", SCOPE).close()
        with pytest.raises(StoreError):
            open_store(base, SCOPE)


def test_a_server_without_tls_is_told_apart(redis_server: RedisServer) -> None:
    with pytest.raises(StoreError, match="TLS"):
        open_store(f"rediss://127.0.0.1:{redis_server.port}", SCOPE, timeout=1)


def test_a_server_with_tls_alone_is_told_apart() -> None:
    error = redis.ConnectionError("Error while reading from h:1 : (104, 'Connection reset by peer')")
    assert "name it as rediss://" in str(store_error(error, "redis://h:1", None, 1.0))
    assert str(store_error(error, "rediss://h:1", None, 1.0)).endswith("peer')")


def test_files_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="ssl_ca_certs must name a file"):
        open_store(f"rediss://localhost?ssl_ca_certs={tmp_path / 'none.pem'}", SCOPE)
    with pytest.raises(ConfigError, match="rediss"):
        open_store(f"redis://localhost?ssl_ca_certs={tmp_path}", SCOPE)
