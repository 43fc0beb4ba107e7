"""The six databases, written once for all tests of this folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentspec.workflows.text_to_sql import DATABASES, Database, create_all


@pytest.fixture(scope="session")
def databases(tmp_path_factory: pytest.TempPathFactory) -> dict[Database, Path]:
    paths = create_all(DATABASES, tmp_path_factory.mktemp("databases"))
    return {database: paths[database.name] for database in DATABASES}
