from __future__ import annotations

from every import every

from agentspec.workflows.text_to_sql.sql.execute import Execution
from agentspec.workflows.text_to_sql.sql.score import is_ordered, same_result


def rows(*cells: tuple[object, ...]) -> Execution:
    return Execution(("a",), cells)  # type: ignore[arg-type]


def test_order_counts_only_where_asked_for() -> None:
    up, down = rows((1,), (2,)), rows((2,), (1,))
    assert same_result(up, down, ordered=False)
    assert not same_result(up, down, ordered=True)


def test_rows_are_a_multiset_not_a_set() -> None:
    assert not same_result(rows((1,), (1,), (2,)), rows((1,), (2,), (2,)), ordered=False)
    assert not same_result(rows((1,)), rows((1,), (1,)), ordered=False)


def test_column_order_counts_and_names_do_not() -> None:
    assert not same_result(rows((1, 2)), rows((2, 1)), ordered=False)
    assert same_result(Execution(("a",), ((1,),)), Execution(("b",), ((1,),)), ordered=False)


def test_floats_within_nine_digits_and_whole_floats_are_equal() -> None:
    assert same_result(rows((0.1 + 0.2,)), rows((0.3,)), ordered=False)
    assert same_result(rows((3.0,)), rows((3,)), ordered=False)
    assert not same_result(rows((3.0001,)), rows((3,)), ordered=False)
    assert not same_result(rows(("3",)), rows((3,)), ordered=False)


def test_failed_or_cut_results_equal_nothing() -> None:
    assert not same_result(rows((1,)), Execution(error="no such table: x"), ordered=False)
    assert not same_result(rows((1,)), Execution(("a",), ((1,),), truncated=True), ordered=False)


@every(
    ("sql", "ordered"),
    [
        ("SELECT a FROM t ORDER BY a;", True),
        ("select a from t order  by a", True),
        ("SELECT a FROM t WHERE b IN (SELECT b FROM u ORDER BY (c) LIMIT 1)", False),
        ("SELECT a FROM t WHERE b = 'ORDER BY x'", False),
        ("SELECT a FROM t GROUP BY a", False),
    ],
)
def test_is_ordered(sql: str, ordered: bool) -> None:
    assert is_ordered(sql) is ordered
