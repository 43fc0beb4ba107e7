from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path

import pytest

from agentspec.workflows.text_to_sql import Database, draw_questions
from agentspec.workflows.text_to_sql.generated.domains import SHOP
from agentspec.workflows.text_to_sql.sql.execute import execute
from agentspec.workflows.text_to_sql.sql.sandbox import Sandbox

# One SQLite instruction that takes many seconds, during which SQLite does not check the time.
ENDLESS_CALL = "SELECT instr(hex(zeroblob(450000)), hex(zeroblob(220000)) || '1')"


@pytest.fixture
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(grace_s=0.2) as sandbox:
        yield sandbox


def test_results_are_those_of_the_same_process(sandbox: Sandbox, databases: dict[Database, Path]) -> None:
    paths = {database.name: path for database, path in databases.items()}
    asked = [(paths[q.database], q.sql) for q in islice(draw_questions(databases, split="train", seed=4), 30)]
    shop = databases[SHOP]
    asked += [
        (shop, sql) for sql in ("SELECT", "DROP TABLE orders", "SELECT x'00ff', NULL, 1.5, 'ü'", "SELECT '\ud800'")
    ]
    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(lambda one: sandbox.execute(*one), asked)) == [execute(*one) for one in asked]


def test_a_call_that_does_not_end_is_killed_and_others_are_not(
    sandbox: Sandbox, databases: dict[Database, Path]
) -> None:
    shop = databases[SHOP]
    with ThreadPoolExecutor(2) as pool:
        endless = pool.submit(sandbox.execute, shop, ENDLESS_CALL, timeout_s=0.1)
        assert all(sandbox.execute(shop, "SELECT 1").rows == ((1,),) for _ in range(50))
        assert endless.result().error == "stopped after 0.1 s"
    assert sandbox.execute(shop, "SELECT 2").rows == ((2,),)


def test_a_process_that_cannot_have_its_memory_ends_alone(databases: dict[Database, Path]) -> None:
    # Python itself does not start with so little memory.
    with Sandbox(memory_bytes=1 << 20) as sandbox:
        assert "ended early" in sandbox.execute(databases[SHOP], "SELECT 1").error


def test_no_process_is_left_behind(databases: dict[Database, Path]) -> None:
    def children() -> set[str]:
        return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())

    before = children()
    with Sandbox(grace_s=0) as sandbox:
        sandbox.execute(databases[SHOP], "SELECT 1")
        sandbox.execute(databases[SHOP], ENDLESS_CALL, timeout_s=0.01)
        sandbox.execute(databases[SHOP], "SELECT 1")
        assert len(children() - before) == 1
    assert children() <= before


def test_a_statement_that_outlives_the_sandbox_leaves_no_process(databases: dict[Database, Path]) -> None:
    with ThreadPoolExecutor(1) as pool:
        with Sandbox(grace_s=0.2) as sandbox:
            late = pool.submit(sandbox.execute, databases[SHOP], ENDLESS_CALL, timeout_s=0.1)
        assert not late.result().ok
    # A process that is started after the end is not kept either.
    assert sandbox.execute(databases[SHOP], "SELECT 1").ok and not sandbox._idle
