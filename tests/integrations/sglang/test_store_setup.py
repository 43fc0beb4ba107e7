"""A store that cannot be used prevents the start, unless it is optional or not requested."""

from __future__ import annotations

import logging
import pwd
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from draft_states import KEY
from programs import output_of

from agentspec import Engine
from agentspec.errors import AgentspecError, ConfigError, StoreError, StoreUnavailableError
from agentspec.integrations.sglang.settings import Settings
from agentspec.integrations.sglang.store_setup import check_store, namespace_key, open_sharing
from agentspec.integrations.sglang.widths.kept_costs import KeptCosts
from agentspec.store import Scope, open_store

SCOPE = Scope("m", "aa" * 32)


@pytest.fixture(autouse=True)
def no_secrets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AGENTSPEC_STORE_PASSWORD", "AGENTSPEC_STORE_KEY", "AGENTSPEC_NAMESPACE_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


def unusable(folder: Path, what: str) -> tuple[Settings, type[AgentspecError], str]:
    """Settings of a store that cannot be used, the expected error, and the text that its message must contain."""
    url = f"sqlite:///{folder}/store.sqlite3"
    if what == "no server":
        return Settings(store="redis://127.0.0.1:9"), StoreUnavailableError, "redis://127.0.0.1:9"
    if what == "no file":
        (folder / "store.sqlite3").write_text("no database, but some text that is long enough to be taken for one")
        return Settings(store=url), StoreError, "store.sqlite3"
    if what == "another tokenizer":
        open_store(url, Scope(SCOPE.model, "bb" * 32)).close()
        return Settings(store=url), StoreError, "b" * 12
    key = folder / "key"
    key.write_text("5" * 64)
    key.chmod(0o640)
    return Settings(store=url, store_key_file=str(key)), ConfigError, "chmod 600"


@pytest.mark.parametrize("what", ["no server", "no file", "another tokenizer", "open key"])
def test_it_stops_the_start_unless_it_is_optional(tmp_path: Path, what: str, caplog: pytest.LogCaptureFixture) -> None:
    settings, kind, named = unusable(tmp_path, what)
    with pytest.raises(kind, match=named):
        check_store(settings, SCOPE)
    with pytest.raises(kind, match=named):
        open_sharing(settings, Engine(), SCOPE)
    optional = Settings(**{**settings.as_dict(), "store_optional": True})
    with caplog.at_level(logging.WARNING):
        check_store(optional, SCOPE)
    assert named in caplog.text
    assert open_sharing(optional, Engine(), SCOPE) is None


def test_the_default_store_is_used_where_it_can_be(tmp_path: Path) -> None:
    sharing = open_sharing(Settings(), Engine(), SCOPE)
    assert sharing is not None
    sharing.close()
    assert (tmp_path / "data" / "agentspec" / "store.sqlite3").is_file()


def test_a_default_store_that_cannot_be_used_is_no_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "data").write_text("a file where the folder should be")
    with caplog.at_level(logging.WARNING):
        check_store(Settings(), SCOPE)
        assert open_sharing(Settings(), Engine(), SCOPE) is None
    assert "nothing learned outlives this server" in caplog.text


def test_a_user_without_a_home_has_no_default_store(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def unknown(uid: int) -> pwd.struct_passwd:
        raise KeyError(uid)

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    for name in ("HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    with caplog.at_level(logging.WARNING):
        check_store(Settings(), SCOPE)
        assert open_sharing(Settings(), Engine(), SCOPE) is None
        assert KeptCosts.of(Settings(), SimpleNamespace(model_path="m"), KEY) is None  # type: ignore[arg-type]
    assert caplog.text.count("this user has no home; set HOME or XDG_DATA_HOME") == 3
    with pytest.raises(ConfigError, match="this user has no home"):
        Settings(store="sqlite://")


def test_what_waits_is_delivered_when_the_process_ends(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/store.sqlite3"
    script = (
        "import sys\n"
        "from agentspec import Engine\n"
        "from agentspec.integrations.sglang.settings import Settings\n"
        "from agentspec.integrations.sglang.store_setup import open_sharing\n"
        "from agentspec.store import Scope\n"
        "sharing = open_sharing(Settings(store=sys.argv[1]), Engine(), Scope('m', 'aa' * 32))\n"
        "sharing.publish('a' * 32, 1 << 32, 'r', [1], [2, 3], 2)\n"
    )
    output_of(sys.executable, "-P", "-c", script, url)
    store = open_store(url, SCOPE)
    assert [info.num_entries for info in store.namespaces()] == [1]
    store.close()


def test_memory_keeps_nothing() -> None:
    assert open_sharing(Settings(store="memory://"), Engine(), SCOPE) is None


def test_keys_come_from_files_or_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert namespace_key(Settings()) is None
    monkeypatch.setenv("AGENTSPEC_NAMESPACE_KEY", "6" * 64)
    assert namespace_key(Settings()) == bytes.fromhex("6" * 64)
    with pytest.raises(ConfigError, match="nowhere"):
        namespace_key(Settings(namespace_key_file=str(tmp_path / "nowhere")))
