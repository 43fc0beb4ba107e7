"""What the page of results shows of each topic's files: a figure, what was measured, and what it stands beside.

Every topic is a folder of evals/results. A file that none of these readers knows is named with its command and machine
alone, so that nothing that was recorded is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from agentspec.evals.eval_table import Summary, summaries

Content = Mapping[str, Any]
Files = Mapping[str, Content]
"""Of a topic the contents of its JSON files by their names."""


class Row(NamedTuple):
    """A line of a topic's table."""

    figure: str
    measured: str
    baseline: str
    file: str
    """Whose command and machine belong to it."""


def topic_rows(topic: str, files: Files) -> list[Row]:
    """The rows of a topic, what matters most first."""
    reader = _READERS.get(topic)
    rows = reader(files) if reader else []
    told = {row.file for row in rows}
    # Simulations of papers' figures are compared with pictures, not with a number.
    rest = [name for name in files if name not in told]
    return rows + [Row(f"see {name}", "recorded", "", name) for name in rest]


def _eval(files: Files) -> list[Row]:
    rows = []
    for name, content in files.items():
        found = list(summaries(content["records"]))
        groups = dict.fromkeys((row.task, row.pass_name) for row in found)
        for task, pass_name in groups:
            some = [row for row in found if (row.task, row.pass_name) == (task, pass_name)]
            clients = sorted({row.concurrency for row in some})
            head = f"{task}, {pass_name}, {'/'.join(map(str, clients))} at a time"
            has_plain = any(row.system == "none" for row in some)
            for system in [row.system for row in some if row.system in ("suffix", "hybrid")][:2]:
                ours = _at(some, system, clients)
                if not any(row and row.records for row in ours):
                    continue
                if has_plain:
                    rows.append(
                        Row(
                            f"{head}: {system}, tokens/s of plain",
                            _line(ours, "speedup_over_none"),
                            f"NGRAM {_line(_at(some, 'ngram', clients), 'speedup_over_none')}",
                            name,
                        )
                    )
                else:
                    rows.append(
                        Row(f"{head}: {system}, tokens/s of NGRAM", _line(ours, "speedup_over_ngram"), "", name)
                    )
                rows.append(
                    Row(
                        f"{head}: {system}, accept length",
                        _line(ours, "accept_length"),
                        f"NGRAM {_line(_at(some, 'ngram', clients), 'accept_length')}",
                        name,
                    )
                )
    return list(dict.fromkeys(rows))


def _at(rows: Sequence[Summary], system: str, clients: Sequence[int]) -> list[Summary | None]:
    by_clients = {row.concurrency: row for row in rows if row.system == system}
    return [by_clients.get(number) for number in clients]


def _line(rows: Sequence[Summary | None], name: str) -> str:
    values = [row.median(name) if row else None for row in rows]
    return " / ".join("-" if value is None else f"{value:.2f}" for value in values)


def _engine(files: Files) -> list[Row]:
    rows = []
    for name, content in files.items():
        if name == "replay.json":
            rows += _replay(name, content)
            continue
        if "case" not in content["rows"][0]:
            # Further replays stand in the folder's own page.
            continue
        largest = max((row["size"] for row in content["rows"] if row["case"] == "memory"), key=_tokens)
        for case, title in (
            ("memory", "memory of finished outputs"),
            ("insert", "a finished output, calling thread"),
            ("draft_bs64_hot", "draft, 64 requests"),
        ):
            some = [row for row in content["rows"] if (row["case"], row["size"]) == (case, largest)]
            if some:
                others = ", ".join(f"{row['peer']} {_short(row['theirs'])}" for row in some)
                measured = f"{_short(some[0]['ours'])} {some[0]['unit']}"
                rows.append(Row(f"{title}, {largest} tokens", measured, others, name))
    return sorted(rows, key=lambda row: row.file != "replay.json")


def _replay(name: str, content: Content) -> list[Row]:
    rows = []
    for trace, row in offline(content).items():
        others = ", ".join(f"{system} {value - 1:.2f}" for system, value in row.items() if system != "agentspec")
        rows.append(Row(f"replay of {trace}, accepted tokens a step", f"{row['agentspec'] - 1:.2f}", others, name))
    return rows


def _text_to_sql(files: Files) -> list[Row]:
    rows = []
    for name, content in files.items():
        if "rows" in content:
            rows += _replay(name, content)
        elif "accuracy" in content:
            figure = f"{content['questions']} questions, {content['run']}: execution accuracy"
            rows.append(Row(figure, f"{content['accuracy']:.1%}", "", name))
    return rows


def _short(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _tokens(size: str) -> int:
    return int(size[:-1]) * {"k": 1_000, "m": 1_000_000}[size[-1]]


def offline(content: Content) -> dict[str, dict[str, float]]:
    """Accept lengths of drafters on recorded outputs, at most 16 tokens drafted: of each trace and pass by system.

    Of a peer with several settings the best.
    """
    found: dict[str, dict[str, float]] = {}
    for row in content["rows"]:
        if row["max_draft_tokens"] == 16 and row["system"] in ("agentspec", "arctic", "ngram"):
            of_trace = found.setdefault(f"{row['set']}, {row['pass']}", {})
            of_trace[row["system"]] = max(of_trace.get(row["system"], 0.0), row["accept_length"])
    return {trace: row for trace, row in found.items() if "agentspec" in row}


def _goals(files: Files) -> list[Row]:
    return [
        Row(
            goal["name"],
            "not reached" if goal["value"] is None else _short(goal["value"]),
            f"goal {goal['target']}{'' if goal['met'] else ', missed'}",
            name,
        )
        for name, content in files.items()
        for goal in content.get("goals", ())
    ]


def _store(files: Files) -> list[Row]:
    return [
        Row(
            row["case"].replace("_", " "),
            f"{_short(row['value'])} {row['unit']}",
            f"goal {row['target']}{'' if row['met'] else ', missed'}",
            name,
        )
        for name, content in files.items()
        for row in sorted(content["rows"], key=lambda row: not row["case"].startswith("warm_start_server"))
        if "target" in row
    ]


def _control(files: Files) -> list[Row]:
    rows = []
    for name, content in files.items():
        for batch in (256, 64, 1):
            some = [row for row in content["rows"] if (row["batch"], row["drafts"]) == (batch, "full")]
            ours = next((row for row in some if row["controller"] == "goodput"), None)
            if ours:
                others = ", ".join(f"{row['controller']} {row['value']:.3f}" for row in some if row is not ours)
                figure = f"deciding for {batch} rows"
                rows.append(Row(figure, f"{ours['value']:.3f} {ours['unit']}", others, name))
    return rows


def _drafter_state(files: Files) -> list[Row]:
    return [
        Row(
            f"accepted tokens of EAGLE-3 after suffix steps, every {row['every']}",
            f"{row['agentspec_accepted']:.2f} at {row['places']} places",
            f"SGLang's {row['sglang_accepted']:.2f}",
            name,
        )
        for name, content in files.items()
        for row in content["rows"]
    ]


def _report(files: Files) -> list[Row]:
    rows = []
    for name, content in files.items():
        if "ranking" in content:
            of = content["ranking"]
            rows.append(
                Row(
                    f"Spearman of entropy and accept length, {of['ranked']} sets and stages",
                    f"{of['spearman_entropy_cold']:.2f}",
                    f"entropy of 100 outputs {of['spearman_entropy_100_cold']:.2f}",
                    name,
                )
            )
        for row in content.get("prediction", {}).get("rows", ()):
            figure = (
                f"{row['set']}: samples whose accept length is predicted within {content['prediction']['goal']:.0%}"
            )
            known = row.get("within_goal_if_known")
            rows.append(Row(figure, row["within_goal"], f"known of the sample itself {known}" if known else "", name))
            if "in_interval" in row:
                figure = f"{row['set']}: samples whose interval of 90% holds the accept length"
                rows.append(Row(figure, row["in_interval"], "", name))
        for row in content.get("verdict", {}).get("rows", ()):
            figure = ", ".join(
                (row["workload"], f"{row['concurrency']} at a time", *([row["state"]] if "state" in row else []))
            )
            span = f"predicted {row['predicted_low']:.2f} to {row['predicted_high']:.2f}"
            measured = "failed" if row["measured"] is None else f"{row['measured']:.2f}x"
            rows.append(Row(f"{figure}: speed-up", measured, span, name))
        for row in content.get("scale", ()):
            figure = f"a log of {row['output_tokens']:,} output tokens"
            rows.append(Row(figure, f"{row['seconds']:.0f} s, {row['peak_mb']:.0f} MB", "", name))
    return rows


def _simulation(files: Files) -> list[Row]:
    """Mean latency of plain decoding and of the best fixed length over that of the goodput controller."""
    rows = []
    for name, content in files.items():
        if name.endswith("_seeds.json"):
            continue
        for arrivals in ("poisson:0.25x", "poisson:0.9x", "poisson:1.5x"):
            at = {row["controller"]: row["latency_mean"] for row in content["rows"] if row["arrivals"] == arrivals}
            if "goodput" in at and "fixed:0" in at:
                fixed = min(value for controller, value in at.items() if controller.startswith("fixed:"))
                rows.append(
                    Row(
                        f"{name.removesuffix('.json')}, {arrivals.removeprefix('poisson:')} of plain's rate, simulated: "
                        "mean latency of plain over goodput",
                        f"{at['fixed:0'] / at['goodput']:.2f}",
                        f"best fixed length over goodput {fixed / at['goodput']:.2f}",
                        name,
                    )
                )
    return rows


def _specdec(files: Files) -> list[Row]:
    rows = []
    for name, content in files.items():
        for drafter in dict.fromkeys(row["drafter"] for row in content["rows"]):
            best: dict[str, float] = {}
            for row in content["rows"]:
                if row["drafter"] == drafter:
                    speed = row["tokens_per_second"]["measured"]
                    best[row["rule"]] = max(best.get(row["rule"], 0.0), speed)
            if {"shipped", "fixed"} <= set(best):
                figure = f"{drafter}: tokens/s by eq. 2.1 with the shipped head"
                rows.append(Row(figure, f"{best['shipped']:.1f}", f"best fixed length {best['fixed']:.1f}", name))
    return rows


def _emulated(files: Files) -> list[Row]:
    rows = _eval({name: content for name, content in files.items() if "records" in content})
    for name, content in files.items():
        some: Sequence[Mapping[str, Any]] = [] if "records" in content else content.get("rows", [])
        for row in some:
            if row.get("system") in ("suffix", "hybrid") and "idle_share" in row:
                peer = next((one for one in some if one["system"] == "ngram" and one["rows"] == row["rows"]), None)
                rows.append(
                    Row(
                        f"{row['system']}, {row['rows']} rows: share of a step in which the device idles",
                        f"{row['idle_share']:.1%}",
                        f"NGRAM {peer['idle_share']:.1%}" if peer else "",
                        name,
                    )
                )
    return rows


_READERS: dict[str, Callable[[Files], list[Row]]] = {
    "eval": _eval,
    "engine": _engine,
    "emulated": _emulated,
    "hybrid": _goals,
    "load": _goals,
    "fidelity": _goals,
    "store": _store,
    "control": _control,
    "drafter-state": _drafter_state,
    "report": _report,
    "simulation": _simulation,
    "specdec": _specdec,
    "text-to-sql": _text_to_sql,
}
TOPICS: tuple[str, ...] = tuple(_READERS)
"""In the order of the page."""


def side_by_side(records: Sequence[Mapping[str, Any]], replay: Content) -> list[tuple[str, ...]]:
    """Accept lengths of replay tasks on the server beside those of drafters offline.

    Args:
        records: Of `agentspec eval`.
        replay: What `agentspec replay` wrote.

    Returns:
        Task and pass; suffix, hybrid and NGRAM on the server with the fewest clients; agentspec, ArcticInference at the
        best of its settings and NGRAM offline; "" where one was not measured.
    """
    told = offline(replay)
    rows = []
    found = list(summaries(records))
    for task, pass_name in dict.fromkeys((row.task, row.pass_name) for row in found):
        some = [row for row in found if (row.task, row.pass_name) == (task, pass_name)]
        traces = [trace for trace in told if trace.split("@")[0].split(",")[0] == task and trace.endswith(pass_name)]
        if not traces:
            continue
        fewest = min(row.concurrency for row in some)
        live = [_line(_at(some, system, [fewest]), "accept_length") for system in ("suffix", "hybrid", "ngram")]
        peers = [told[traces[0]].get(system) for system in ("agentspec", "arctic", "ngram")]
        rows.append((f"{task}, {pass_name}", *live, *("" if value is None else f"{value:.2f}" for value in peers)))
    return rows
