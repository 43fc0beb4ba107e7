"""The grammar: each intent draws a question in words and the query that answers it, or None if it cannot."""

from __future__ import annotations

from collections.abc import Callable

from agentspec.workflows.text_to_sql.generated.databases import Column, Table
from agentspec.workflows.text_to_sql.generated.queries import Filter, Membership, Query
from agentspec.workflows.text_to_sql.generated.wording import Drawer, listing

Asked = tuple[str, Query]
Intent = Callable[[Drawer], Asked | None]

_AGGREGATES = {
    "AVG": ("average", "mean"),
    "SUM": ("total", "sum of the"),
    "MAX": ("highest", "maximum"),
    "MIN": ("lowest", "minimum"),
}


def _full(table: Table, column: Column) -> str:
    return f"{table.name}.{column.name}"


def _aggregate(d: Drawer, table: Table) -> tuple[str, str] | None:
    """(SQL expression, words) of an aggregate over a number of the table."""
    column = d.column(table, "number")
    if column is None:
        return None
    function = d.pick(*_AGGREGATES)
    return f"{function}({_full(table, column)})", f"{d.pick(*_AGGREGATES[function])} {column.phrase}"


def list_rows(d: Drawer) -> Asked:
    """Columns of the matching rows, sometimes sorted."""
    table = d.table()
    columns = d.columns(table)
    filters, connector, words = d.conditions(table)
    start = d.pick("List the", "Show the", "Give me the", "What are the", "Find the")
    text = f"{start} {listing([c.phrase for c in columns])} of {d.pick('', 'all ')}{table.plural}{words}"
    order = ""
    sort = d.column(table, "number", "date")
    if sort is not None and d.chance(0.3):
        descending = d.chance(0.5)
        order = _full(table, sort) + (" DESC" if descending else "")
        up, down = d.pick("ascending/descending", "from low to high/from high to low").split("/")
        text += f", sorted by {sort.phrase} {down if descending else up}"
    select = tuple(_full(table, c) for c in columns)
    return text, Query(table.name, select, where=tuple(filters), connector=connector, order=order)


def count_rows(d: Drawer) -> Asked:
    """The number of matching rows."""
    table = d.table()
    filters, connector, words = d.conditions(table)
    text = d.pick("How many {} are there", "Count the {}", "What is the number of {}", "How many {} do we have")
    return text.format(table.plural + words), Query(
        table.name, ("COUNT(*)",), where=tuple(filters), connector=connector
    )


def aggregate_rows(d: Drawer) -> Asked | None:
    """One aggregate of a number."""
    table = d.table()
    drawn = _aggregate(d, table)
    if drawn is None:
        return None
    filters, connector, words = d.conditions(table)
    text = d.pick("What is the {} of {}", "Find the {} of {}", "Tell me the {} of {}", "Compute the {} of {}")
    return text.format(drawn[1], d.pick("", "all ") + table.plural + words), Query(
        table.name, (drawn[0],), where=tuple(filters), connector=connector
    )


def distinct_values(d: Drawer) -> Asked | None:
    """The distinct values of a category, or their number."""
    table = d.table()
    column = d.column(table, "category")
    if column is None:
        return None
    condition = d.condition(table, avoid=_full(table, column)) if d.chance(0.7) else None
    words, where = (f" {condition.words}", (condition.filter,)) if condition else ("", ())
    if d.chance(0.4):
        text = d.pick("How many different {} values do {} have", "Count the distinct {} values of {}")
        select: tuple[str, ...] = (f"COUNT(DISTINCT {_full(table, column)})",)
        return text.format(column.phrase, table.plural + words), Query(table.name, select, where=where)
    text = d.pick(
        "List the different {} values of {}",
        "What distinct {} values do {} have",
        "Which unique {} values occur among {}",
    )
    return text.format(column.phrase, table.plural + words), Query(
        table.name, (_full(table, column),), where=where, distinct=True
    )


def top_rows(d: Drawer) -> Asked | None:
    """The first rows by a number or a date."""
    table = d.table()
    sort = d.column(table, "number", "date")
    if sort is None:
        return None
    filters, connector, words = d.conditions(table, most=1)
    descending = d.chance(0.6)
    high, low = ("latest", "earliest") if sort.kind == "date" else ("highest", "lowest")
    best = high if descending else low
    limit = 1 if d.chance(0.4) else d.rng.randint(2, 9)
    name = table.identity.phrase
    if limit == 1:
        form = d.pick(
            "Which of the {t}{w} has the {b} {s}? Give its {n}",
            "What is the {n} of the {o} with the {b} {s} among {t}{w}",
        )
    else:
        form = d.pick(
            "Show the {n} of the {l} {t} with the {b} {s} among {t}{w}",
            "Which {l} of the {t}{w} have the {b} {s}? Give their {n}",
        )
    text = form.format(t=table.plural, o=table.singular, w=words, b=best, s=sort.phrase, n=name, l=limit)
    return text, Query(
        table.name,
        (_full(table, table.identity),),
        where=tuple(filters),
        connector=connector,
        order=_full(table, sort) + (" DESC" if descending else ""),
        limit=limit,
    )


def group_rows(d: Drawer) -> Asked | None:
    """A count or an aggregate for each value of a category, sometimes sorted by it."""
    table = d.table()
    column = d.column(table, "category")
    if column is None:
        return None
    filters, connector, words = d.conditions(table, most=1)
    drawn = _aggregate(d, table) if d.chance(0.55) else None
    if drawn is None:
        expression = "COUNT(*)"
        form = d.pick(
            "How many {t} are there for each {c}", "Count the {t} per {c}", "Show each {c} with its number of {t}"
        )
    else:
        expression = drawn[0]
        form = d.pick(
            "What is the {a} of {t} for each {c}", "Show the {a} of {t} per {c}", "For each {c}, give the {a} of {t}"
        )
    text = form.format(t=table.plural + words, c=column.phrase, a=drawn[1] if drawn else "")
    order = ""
    if d.chance(0.25):
        order = f"{expression} DESC"
        text += ", largest first"
    return text, Query(
        table.name,
        (_full(table, column), expression),
        where=tuple(filters),
        connector=connector,
        group=_full(table, column),
        order=order,
    )


def group_having(d: Drawer) -> Asked | None:
    """The values of a category whose group is large, or whose average is high or low."""
    table = d.table()
    column, number = d.column(table, "category"), d.column(table, "number")
    if column is None or number is None:
        return None
    condition = d.condition(table, avoid=_full(table, column)) if d.chance(0.4) else None
    words, where = (f" {condition.words}", (condition.filter,)) if condition else ("", ())
    op, comparing = (">", "more than") if d.chance(0.6) else ("<", "less than")
    if d.chance(0.6):
        bound = max(2, table.rows // (2 * len(column.values)) + d.rng.randint(-4, 6))
        text = d.pick("Which {c} values have {o} {b} {t}", "List every {c} with {o} {b} {t}")
        having = f"COUNT(*) {op} {bound}"
    else:
        bound = int((number.low + number.high) / 2 * d.rng.uniform(0.8, 1.2))
        text = d.pick(
            "Which {c} values have an average {n} of {o} {b} over {t}",
            "List every {c} whose {t} have an average {n} of {o} {b}",
        )
        having = f"AVG({_full(table, number)}) {op} {bound}"
    text = text.format(c=column.phrase, o=comparing, b=bound, t=table.plural + words, n=number.phrase)
    return text, Query(table.name, (_full(table, column),), where=where, group=_full(table, column), having=having)


def _join(child: Table, ref: Column, parent: Table) -> tuple[str, str]:
    return parent.name, f"{child.name}.{ref.name} = {parent.name}.id"


def join_filter(d: Drawer) -> Asked | None:
    """Rows, a count or an aggregate of a child whose parent matches."""
    child, ref, parent = d.reference()
    above = d.condition(parent)
    if above is None:
        return None
    own = d.condition(child) if d.chance(0.35) else None
    words = f"{own.words + ' ' if own else ''}{ref.relation} {parent.plural} {above.words}"
    where = ((own.filter,) if own else ()) + (above.filter,)
    joins = (_join(child, ref, parent),)
    drawn = _aggregate(d, child) if d.chance(0.4) else None
    if drawn is not None:
        form = d.pick("What is the {} of {} {}", "Compute the {} of {} {}")
        return form.format(drawn[1], child.plural, words), Query(child.name, (drawn[0],), joins, where)
    if d.chance(0.4):
        form = d.pick("How many {} are {}", "Count the {} {}", "What is the number of {} {}")
        if own:
            form = form.replace(" are ", " ")
        return form.format(child.plural, words), Query(child.name, ("COUNT(*)",), joins, where)
    columns = d.columns(child)
    form = d.pick("List the {} of {} {}", "Show the {} of {} {}", "Find the {} of {} {}")
    select = tuple(_full(child, c) for c in columns)
    return form.format(listing([c.phrase for c in columns]), child.plural, words), Query(
        child.name, select, joins, where
    )


def join_pairs(d: Drawer) -> Asked | None:
    """A column of the child beside a column of its parent."""
    child, ref, parent = d.reference()
    shown = d.column(child, "label", "category", "number", "date")
    beside = d.column(parent, "label", "category")
    condition = d.condition(child) if d.chance(0.7) else d.condition(parent)
    if shown is None or beside is None or condition is None:
        return None
    on_child = condition.filter.column.startswith(f"{child.name}.")
    words = condition.words if on_child else f"{ref.relation} {parent.plural} {condition.words}"
    form = d.pick("Show the {} of {} {} together with the {} of the {}", "List the {} of {} {} and the {} of the {}")
    text = form.format(shown.phrase, child.plural, words, beside.phrase, parent.singular)
    select = (_full(child, shown), _full(parent, beside))
    return text, Query(child.name, select, (_join(child, ref, parent),), (condition.filter,))


def join_group(d: Drawer) -> Asked | None:
    """For each parent, or for each category of parents, a count or an aggregate of its children."""
    child, ref, parent = d.reference()
    category = d.column(parent, "category")
    by = category if category is not None and d.chance(0.5) else parent.identity
    if by.kind == "key":
        return None
    condition = d.condition(child) if d.chance(0.4) else None
    drawn = _aggregate(d, child) if d.chance(0.4) else None
    expression = drawn[0] if drawn else "COUNT(*)"
    what = f"{drawn[1]} of" if drawn else "number of"
    form = d.pick(
        "For each {p} {c}, show the {w} {t}", "What is the {w} {t} for each {p} {c}", "Give the {w} {t} per {p} {c}"
    )
    children = child.plural + (f" {condition.words}" if condition else "")
    group = _full(parent, by) if by.kind == "category" else f"{parent.name}.id"
    return form.format(p=parent.singular, c=by.phrase, w=what, t=children), Query(
        child.name,
        (_full(parent, by), expression),
        (_join(child, ref, parent),),
        (condition.filter,) if condition else (),
        group=group,
    )


def join_rank(d: Drawer) -> Asked | None:
    """The parents with the most children, or with more than a given number of them."""
    child, ref, parent = d.reference()
    if parent.identity.kind == "key":
        return None
    condition = d.condition(child) if d.chance(0.4) else None
    children = child.plural + (f" {condition.words}" if condition else "")
    limit, having, order = 0, "", ""
    if d.chance(0.5):
        bound = max(1, child.rows // parent.rows + d.rng.randint(-1, 4) - (2 if condition else 0))
        having = f"COUNT(*) > {bound}"
        form = d.pick("Which {p} have more than {b} {t}? Give the {n}", "List the {n} of {p} with more than {b} {t}")
        text = form.format(p=parent.plural, b=bound, t=children, n=parent.identity.phrase)
    else:
        order, limit = "COUNT(*) DESC", d.rng.choice((1, 1, 2, 3, 4, 5))
        if limit == 1:
            form = d.pick("Which {o} has the most {t}? Give the {n}", "What is the {n} of the {o} with the most {t}")
        else:
            form = d.pick(
                "Which {l} {p} have the most {t}? Give the {n}", "Show the {n} of the {l} {p} with the most {t}"
            )
        text = form.format(o=parent.singular, p=parent.plural, l=limit, t=children, n=parent.identity.phrase)
    return text, Query(
        child.name,
        (_full(parent, parent.identity),),
        (_join(child, ref, parent),),
        (condition.filter,) if condition else (),
        group=f"{parent.name}.id",
        having=having,
        order=order,
        limit=limit,
    )


def join_three(d: Drawer) -> Asked | None:
    """Rows, a count or an aggregate of a child whose grandparent matches."""
    child, ref, parent = d.reference()
    above = [r for r in d.database.references() if r[0].name == parent.name]
    if not above:
        return None
    _, upper_ref, grandparent = d.rng.choice(above)
    top = d.condition(grandparent)
    if top is None:
        return None
    own = d.condition(child) if d.chance(0.25) else None
    words = f"{own.words + ' ' if own else ''}{ref.relation} {parent.plural} {upper_ref.relation} "
    words += f"{grandparent.plural} {top.words}"
    joins = (_join(child, ref, parent), _join(parent, upper_ref, grandparent))
    where = ((own.filter,) if own else ()) + (top.filter,)
    drawn = _aggregate(d, child) if d.chance(0.35) else None
    if drawn is not None:
        form = d.pick("What is the {} of {} {}", "Compute the {} of {} {}")
        return form.format(drawn[1], child.plural, words), Query(child.name, (drawn[0],), joins, where)
    if d.chance(0.4):
        form = d.pick("Count the {} {}", "What is the number of {} {}")
        return form.format(child.plural, words), Query(child.name, ("COUNT(*)",), joins, where)
    column = d.column(child, "label", "category", "number", "date") or child.identity
    form = d.pick("List the {} of {} {}", "Show the {} of {} {}")
    return form.format(column.phrase, child.plural, words), Query(child.name, (_full(child, column),), joins, where)


def bridge(d: Drawer) -> Asked | None:
    """Parents of one side of a linking table, chosen by a condition on its other side; None without such a table."""
    linking = [t for t in d.database.tables if len(t.of_kind("ref")) == 2]
    if not linking:
        return None
    table = d.rng.choice(linking)
    near, far = d.rng.sample(table.of_kind("ref"), 2)
    wanted, other = d.database.table(near.refers), d.database.table(far.refers)
    condition = d.condition(other)
    if condition is None:
        return None
    form = d.pick(
        "Which {w} have {t} {r} {o} {c}? Give the different {n} values",
        "List the distinct {n} values of {w} that have {t} {r} {o} {c}",
    )
    text = form.format(
        w=wanted.plural, t=table.plural, r=far.relation, o=other.plural, c=condition.words, n=wanted.identity.phrase
    )
    return text, Query(
        table.name,
        (_full(wanted, wanted.identity),),
        (_join(table, near, wanted), _join(table, far, other)),
        (condition.filter,),
        distinct=True,
    )


def membership(d: Drawer) -> Asked | None:
    """Parents with, or without, a matching child."""
    child, ref, parent = d.reference()
    negated = d.chance(0.5)
    condition = d.condition(child) if d.chance(0.8) or not negated else None
    if not negated and condition is None:
        return None
    children = child.plural + (f" {condition.words}" if condition else "")
    form = (
        d.pick("Which {p} have no {t}? Give the {n}", "List the {n} of {p} that have no {t}")
        if negated
        else d.pick("Which {p} have any {t}? Give the {n}", "List the {n} of {p} that have any {t}")
    )
    text = form.format(p=parent.plural, t=children, n=parent.identity.phrase)
    inside = Membership(f"{parent.name}.id", _full(child, ref), negated, (condition.filter,) if condition else ())
    return text, Query(parent.name, (_full(parent, parent.identity),), where=(inside,))


def against_average(d: Drawer) -> Asked | None:
    """Rows above or below the average of their table."""
    table = d.table()
    number = d.column(table, "number")
    if number is None:
        return None
    above = d.chance(0.5)
    condition = d.condition(table, avoid=_full(table, number)) if d.chance(0.4) else None
    words = f" {condition.words}" if condition else ""
    side = "above" if above else "below"
    bound = f"(SELECT AVG({number.name}) FROM {table.name})"
    where = (Filter(_full(table, number), ">" if above else "<", bound),) + ((condition.filter,) if condition else ())
    if d.chance(0.4):
        form = d.pick(
            "How many {t}{w} have a {c} {s} the overall average",
            "Count the {t}{w} that have a {c} {s} the overall average",
        )
        select: tuple[str, ...] = ("COUNT(*)",)
    else:
        form = d.pick(
            "Which {t}{w} have a {c} {s} the overall average? Give the {n}",
            "List the {n} of {t}{w} that have a {c} {s} the overall average",
        )
        select = (_full(table, table.identity),)
    text = form.format(t=table.plural, w=words, c=number.phrase, s=side, n=table.identity.phrase)
    return text, Query(table.name, select, where=where)


# Weight of each intent in a draw.
INTENTS: dict[str, tuple[Intent, float]] = {
    "list": (list_rows, 1.5),
    "count": (count_rows, 1.0),
    "aggregate": (aggregate_rows, 1.0),
    "distinct": (distinct_values, 0.8),
    "top": (top_rows, 1.0),
    "group": (group_rows, 1.0),
    "having": (group_having, 0.8),
    "join_filter": (join_filter, 1.5),
    "join_pairs": (join_pairs, 1.0),
    "join_group": (join_group, 1.0),
    "join_rank": (join_rank, 1.0),
    "join_three": (join_three, 1.0),
    "bridge": (bridge, 0.8),
    "membership": (membership, 1.0),
    "average": (against_average, 0.8),
}
