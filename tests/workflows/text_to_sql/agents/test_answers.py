from __future__ import annotations

import json
import random
import time
from typing import Any

import pytest
from every import every

from agentspec.workflows.text_to_sql.agents.answers import UnusableAnswer, flag_of, read_object, read_select, texts_of

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
