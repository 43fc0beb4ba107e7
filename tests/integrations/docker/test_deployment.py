"""The files for Docker and Kubernetes: linted, valid by their schemas, and secrets with which a Redis lets agentspec in.

Nothing here builds an image or starts a container.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from needs import DEPLOYMENT
from programs import output_of

from agentspec.errors import StoreError
from agentspec.evals.micro.store.redis_server import RedisServer
from agentspec.integrations.sglang.settings import FIELDS
from agentspec.store import Scope, open_store
from agentspec.store.secrets import PASSWORD_VARIABLE, read_key, read_password

INTEGRATIONS = Path(__file__).parents[3] / "integrations"
DOCKER, KUBERNETES = INTEGRATIONS / "docker", INTEGRATIONS / "kubernetes"
VARIABLES = {f"AGENTSPEC_{name.upper()}" for name in FIELDS} | {
    PASSWORD_VARIABLE, "AGENTSPEC_STORE_KEY", "AGENTSPEC_NAMESPACE_KEY",
}  # fmt: skip


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("secrets")
    _make_secrets(folder)
    return folder


def _make_secrets(folder: Path) -> None:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    output_of(DOCKER / "make-secrets.sh", folder, "redis", env={**os.environ, "PATH": path})


@pytest.mark.deployment
@pytest.mark.parametrize("name", ["Dockerfile", "Dockerfile.cpu", "Dockerfile.router"])
def test_dockerfiles_are_linted(name: str) -> None:
    output_of(DEPLOYMENT / "hadolint", DOCKER / name)


@pytest.mark.deployment
def test_compose_follows_its_schema() -> None:
    output_of(DEPLOYMENT / "check-jsonschema", "--builtin-schema", "vendor.compose-spec", DOCKER / "compose.yaml")


@pytest.mark.deployment
def test_kubernetes_resources_follow_their_schemas(secrets: Path, tmp_path: Path) -> None:
    if shutil.which("kubectl") is None:
        # The overlay only adds a namespace and secrets.
        files: Sequence[Path] = [*KUBERNETES.glob("base/r*.yaml"), KUBERNETES / "redis" / "redis.yaml"]
    else:
        shutil.copytree(KUBERNETES, tmp_path / "kubernetes")
        shutil.copytree(secrets, tmp_path / "kubernetes" / "fleet" / "secrets", dirs_exist_ok=True)
        command = ["kubectl", "kustomize", tmp_path / "kubernetes" / "fleet"]
        rendered = tmp_path / "rendered.yaml"
        rendered.write_text(output_of(*command))
        files = [rendered]
    output_of(DEPLOYMENT / "kubernetes-validate", "--strict", *files)


def _environments(node: Any) -> set[str]:
    """Names of all environment variables of ours in a tree of YAML, also those that begin a literal."""
    if isinstance(node, dict):
        named = {str(node["name"])} if isinstance(node.get("name"), str) else set()
        return named.union(node, *map(_environments, node.values()))
    if isinstance(node, list):
        return set().union(*map(_environments, node))
    return {str(node).partition("=")[0]}


def test_every_variable_is_a_setting() -> None:
    files = [DOCKER / "compose.yaml", *KUBERNETES.glob("*/*.yaml")]
    found = {
        name
        for file in files
        for document in yaml.safe_load_all(file.read_text())
        for name in _environments(document)
        if isinstance(name, str) and name.startswith("AGENTSPEC_")
    }
    assert {"AGENTSPEC_STORE", "AGENTSPEC_STORE_PASSWORD", "AGENTSPEC_STORE_PASSWORD_FILE"} <= found <= VARIABLES


def test_compose_names_files_that_are_there(secrets: Path) -> None:
    compose = yaml.safe_load((DOCKER / "compose.yaml").read_text())
    for secret in compose["secrets"].values():
        assert (secrets / Path(secret["file"]).name).exists()
    for config in compose["configs"].values():
        assert "file" not in config or (DOCKER / config["file"]).exists()
    for service in compose["services"].values():
        assert set(service.get("secrets", ())) <= set(compose["secrets"])
        assert {each["source"] for each in service.get("configs", ())} <= set(compose["configs"])
    # The other file of this configuration is for a server on the same machine.
    ours = yaml.safe_load(compose["configs"]["prometheus"]["content"].replace("$$", "$"))
    other = yaml.safe_load((INTEGRATIONS / "prometheus" / "prometheus.yml").read_text())
    assert ours["scrape_configs"][0]["metric_relabel_configs"] == other["scrape_configs"][0]["metric_relabel_configs"]
    assert json.loads((DOCKER / compose["configs"]["dashboard"]["file"]).read_text())["uid"] == "agentspec"


def test_the_router_is_the_one_that_tests_have_asked() -> None:
    (version,) = re.findall(r"pip install .* smg==(\S+)", (DOCKER / "Dockerfile.router").read_text())
    assert f'"smg=={version}"' in (INTEGRATIONS.parent / "pyproject.toml").read_text()
    base = yaml.safe_load((INTEGRATIONS / "kubernetes" / "base" / "kustomization.yaml").read_text())
    assert {image["name"]: image["newTag"] for image in base["images"]}["smg"] == version


def test_secrets_are_private_and_never_replaced(secrets: Path) -> None:
    before = {path.name: path.read_bytes() for path in secrets.iterdir()}
    assert all(path.stat().st_mode & 0o077 == 0 for path in secrets.iterdir())
    _make_secrets(secrets)
    assert {path.name: path.read_bytes() for path in secrets.iterdir()} == before
    assert read_key(secrets / "store.key") and read_key(secrets / "namespace.key")
    output_of("openssl", "verify", "-CAfile", secrets / "ca.pem", "-verify_hostname", "redis", secrets / "redis.pem")


@pytest.mark.redis
def test_the_users_of_redis(secrets: Path, tmp_path: Path) -> None:
    password = read_password(secrets / "store-password")
    assert password is not None
    rules = (secrets / "users.acl").read_text()
    assert hashlib.sha256(password.text().encode()).hexdigest() in rules and password.text() not in rules
    # A Redis 7 that restarts drops what transactions wrote if the default user has no rights.
    assert rules.startswith("user default off ~* &* +@all\n")
    # The tests' own commands use the default user, so here it stays on. Everything else is as in a fleet.
    (tmp_path / "users.acl").write_text(rules.replace("user default off", "user default on nopass"))
    with RedisServer(tmp_path, "--aclfile", str(tmp_path / "users.acl"), "--maxmemory-policy", "noeviction") as server:
        url = f"redis://agentspec@127.0.0.1:{server.port}/0"
        store = open_store(url, Scope("m", "t"), password=password.text())
        store.append([("a" * 32, b"output")])
        assert store.lease("me", 60)
        assert [info.namespace for info in store.namespaces()] == ["a" * 32]
        store.close()
        with pytest.raises(StoreError):
            open_store(url, Scope("m", "t"), password="wrong")
