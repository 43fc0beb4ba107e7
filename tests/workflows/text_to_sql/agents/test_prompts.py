"""Prompts, what is read from answers, and votes among them."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from typing import Any

import pytest
from every import every

from agentspec.workflows.text_to_sql.agents.answers import UnusableAnswer, flag_of, read_object, read_select, texts_of
from agentspec.workflows.text_to_sql.agents.prompts import (
    check_answer,
    linked_tables,
    read_sql,
    read_verdict,
    shown,
    write_messages,
)
from agentspec.workflows.text_to_sql.agents.voting import vote
from agentspec.workflows.text_to_sql.generated.domains import SHOP
from agentspec.workflows.text_to_sql.sql.execute import Cell, Execution
from agentspec.workflows.text_to_sql.sql.score import same_result


def test_the_writer_sees_the_linker_s_part_of_the_schema_only() -> None:
    links = json.dumps({"tables": {"orders": SHOP.table_text("orders")}})
    content = write_messages(SHOP, "How many orders?", links)[1]["content"]
    assert "customer_id = customers.id" in content and "products: id" not in content


@every("links", ["{", "[]", '"orders"', "{}", '{"tables": 3}', '{"tables": ["nowhere"]}'])
def test_unusable_links_give_the_whole_schema(links: str) -> None:
    assert linked_tables(SHOP, links) == frozenset()
    assert "products: id" in write_messages(SHOP, "How many orders?", links)[1]["content"]


@every(
    ("answer", "sql"),
    [
        ("SELECT 1;", "SELECT 1;"),
        (" SELECT 1 ", "SELECT 1"),
        ("```sql\nSELECT 1;\n```", "SELECT 1;"),
        ("SELECT 1; DROP TABLE t;", "SELECT 1;"),
        ("SELECT ';' FROM t; x", "SELECT ';' FROM t;"),
        ("", ""),
    ],
)
def test_read_sql(answer: str, sql: str) -> None:
    assert read_sql(answer) == sql


def test_read_verdict() -> None:
    assert read_verdict(check_answer("How many?", "SELECT 1;", "ok", "fine")).ok
    assert read_verdict("Sure: " + check_answer("How many?", "SELECT 1;", "repair", "no") + " done").reason == "no"
    for unreadable in ("", "ok", "{", '{"reason": "x"}', "[1]", "} {"):
        assert not read_verdict(unreadable).ok


def test_result_is_shown_short() -> None:
    execution = Execution(("name", "mean"), tuple((f"row {i}" + "x" * 100, 1 / 3) for i in range(9)))
    lines = shown(execution).splitlines()
    assert lines[:2] == ["columns: name, mean", "rows: 9"] and len(lines) == 5
    assert lines[2].endswith("| 0.333333") and len(lines[2]) < 60
    assert shown(Execution(error="no such table: x")) == "error: no such table: x"


FAILED = Execution(error="no such table")


def ran(*cells: Cell) -> Execution:
    return Execution(("c",), tuple((cell,) for cell in cells))


def test_the_most_frequent_result_wins_whatever_the_order_of_its_rows() -> None:
    counted = vote([ran(3), ran(1, 2), FAILED, ran(2, 1.0), ran(1, 2)])
    assert counted.order == (1, 0) and counted.is_decided
    assert vote([]).order == ()


def test_drawn_votes_agree_with_counting_pairs() -> None:
    rng = random.Random(1)
    for _ in range(300):
        kinds = [FAILED, ran(1), ran(1, 1), ran(1, 2), ran(2, 1), ran("1"), ran(None)]
        drawn = [rng.choice(kinds) for _ in range(rng.randint(1, 6))]
        counted = vote(drawn)
        votes = [sum(same_result(one, other, ordered=False) for other in drawn) for one in drawn]
        assert counted.is_decided == (2 * max(votes) > len(drawn))
        assert [votes[place] for place in counted.order] == sorted((votes[p] for p in counted.order), reverse=True)
        assert sum(votes[place] for place in counted.order) == sum(
            Counter(one.ok for one in drawn)[ok] for ok in (True,)
        )


WRAPPINGS = (
    "{}",
    "```json\n{}\n```",
    "Here it is:\n{}\nI hope that helps {{with}} it.",
    "<think>Is it {{1}}? No.</think>\n{}",
    '  \n{}\n\n{{"kind": "another"}}',
)


def drawn_object(rng: random.Random) -> dict[str, Any]:
    texts = ["a", 'quote " here', "brace } here", "line\nbreak", "ünï", "comma ,} end"]
    inner = {rng.choice("xyz"): rng.choice([True, None, 3, *texts])}
    return {
        f"k{i}": rng.choice([rng.choice(texts), rng.sample(texts, 2), inner, 1.5]) for i in range(rng.randint(1, 5))
    }


def test_drawn_objects_are_found_in_whatever_surrounds_them() -> None:
    rng = random.Random(0)
    for _ in range(200):
        value = drawn_object(rng)
        text = json.dumps(value, ensure_ascii=rng.random() < 0.5, indent=rng.choice([None, 1]))
        assert read_object(rng.choice(WRAPPINGS).format(text)) == value


@pytest.mark.parametrize("text", ['{"a": [1, 2,], }', "{'a': [1, 2]}", '{"a": [1,\n 2]}', "x {'a': (1, 2)}"])
def test_small_faults_are_read_over(text: str) -> None:
    assert list(read_object(text)["a"]) == [1, 2]


@every("text", ["", "  ", "no", "{}", '["a"]', '{"a": [1, 2', "null", "<think>{'a': 1}", "{" * 50])
def test_what_holds_no_object_says_so(text: str) -> None:
    with pytest.raises(UnusableAnswer, match="JSON object"):
        read_object(text)


def test_nonsense_is_read_in_no_time() -> None:
    began = time.process_time()
    for text in ("{" * 1_000_000, '{"' * 500_000, "[" * 1_000_000, "SELECT '" * 100_000, "```" * 300_000):
        for reader in (read_object, read_select):
            with pytest.raises(UnusableAnswer):
                reader(text)
    # Reading takes seconds if it is linear, and minutes if it is not.
    assert time.process_time() - began < 60


def test_lists_and_flags_as_models_write_them() -> None:
    assert texts_of(["a", "a", " b ", 3, None, {"name": "c"}, ["d"], True]) == ("a", "b", "3", "c")
    assert texts_of("a") == ("a",) and texts_of({"a": 1}) == ("a",) and texts_of(None) == ()
    assert [flag_of(value) for value in (True, "Yes", 1, "false", None, 0)] == [True, True, True, False, False, False]


@every(
    ("answer", "sql"),
    [
        ("SELECT 1;", "SELECT 1;"),
        ("```sql\nSELECT 1\n```", "SELECT 1"),
        ("First:\n```\nSELECT 1\n```\nbetter:\n```sqlite\nSELECT 2\n```", "SELECT 2"),
        ("```sql\nSELECT 1", "SELECT 1"),
        ('{"sql": "SELECT 1"}', "SELECT 1"),
        ("The query is:\n\nSELECT 1 FROM t;\n\nIt returns one.", "SELECT 1 FROM t;"),
        ("-- tables: t\nSELECT a FROM t WHERE b = 'x;y';", "-- tables: t\nSELECT a FROM t WHERE b = 'x;y';"),
        ("<think>DROP TABLE t</think>WITH a AS (SELECT 1) SELECT * FROM a", "WITH a AS (SELECT 1) SELECT * FROM a"),
    ],
)
def test_sql_is_found(answer: str, sql: str) -> None:
    assert read_select(answer) == sql


@every(
    ("answer", "reason"),
    [
        ("", "no SQL"),
        ("I cannot.", "not valid"),
        ("DROP TABLE t", "DROP"),
        ("```sql\nSELECT 1; DELETE FROM t\n```", "got 2"),
        ('{"sql": "PRAGMA x"}', "PRAGMA"),
    ],
)
def test_what_is_no_select_says_why(answer: str, reason: str) -> None:
    with pytest.raises(UnusableAnswer, match=reason):
        read_select(answer)
