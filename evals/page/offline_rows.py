"""Rows of results that need no server: engine, replays, controllers, the report, the store, simulations."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agentspec.evals.page.row import CONTROLS, Content, Files, Goal, Reader, Row, at_least, at_most, mean, short

Replay = Mapping[str, Any]

_RIVALS = {
    "fixed:0": "plain",
    "smartspec": "SmartSpec",
    "smartspec:tree": "SmartSpec, trees",
    "batch-table": "batch table",
}
_ENGINE_CASES = {
    "memory": "memory of finished outputs",
    "insert": "a finished output, calling thread only (the peers do all work there)",
    "insert_all_threads": "a finished output, all threads",
    "draft_bs64_hot": "draft, 64 requests",
    "draft_bs1_hot": "draft, 1 request",
}


def engine_rows(files: Files) -> Iterator[Row]:
    largest_of = {
        name: max((row["size"] for row in content["rows"] if row["case"] == "memory"), key=_tokens)
        for name, content in files.items()
    }
    for name, largest in sorted(largest_of.items(), key=lambda item: _tokens(item[1])):
        for case, title in _ENGINE_CASES.items():
            some = [row for row in files[name]["rows"] if (row["case"], row["size"]) == (case, largest)]
            if some:
                figure = f"{short(some[0]['ours'])} {some[0]['unit']}"
                peers = ", ".join(f"{row['peer']} {short(row['theirs'])}" for row in some)
                yield Row(name, f"{title}, {largest.upper()} tokens", "agentspec", figure, peers)


def _tokens(size: str) -> int:
    return int(size[:-1]) * {"k": 1_000, "m": 1_000_000}[size[-1]]


def _accepted(row: Mapping[str, Any]) -> str:
    return f"{row['accepted_per_step']:.2f} ({row['drafted_per_step']:.1f})"


def report_rows(files: Files) -> Iterator[Row]:
    for name, content in files.items():
        if "ranking" in content:
            yield _ranking(name, content["ranking"])
        if "halves" in content:
            yield from _halves(name, content["halves"])


def _ranking(name: str, found: Mapping[str, Any]) -> Row:
    value = found["spearman_entropy_cold"]
    return Row(
        name,
        f"rank correlation (Spearman) of low entropy and accept length, {found['ranked']} sets and stages",
        "report",
        f"{value:.2f}",
        f"with 100 outputs each {found['spearman_entropy_100_cold']:.2f}",
        (at_least("correlation", value, found["goal"]),),
    )


def _halves(name: str, found: Mapping[str, Any]) -> Iterator[Row]:
    least, most = found["goal"]
    states = [(row, state, row[state]) for row in found["rows"] for state in ("cold", "warm")]
    for row, state, of in states:
        yield Row(
            name,
            f"90 % intervals of the accept length of {row['set']}, {state}, from half of {row['sessions']} sessions",
            "report",
            f"{of['reported']:.2f}, -{of['below']:.0%} and +{of['above']:.0%}; {of['held']:.0%} of {row['draws']} held",
            f"replay of the other half {of['replayed']:.2f}",
        )
    held = [of["held"] for _, _, of in states]
    goal = f"{min(held):.0%} to {max(held):.0%} held, goal {least:.0%} to {most:.0%}"
    met = least <= min(held) and max(held) <= most
    yield Row(name, "90 % intervals of all sets", "report", goals=(Goal(goal, met),))


def simulation_rows(files: Files) -> Iterator[Row]:
    """Recorded traces at all rates: the least ratio of a rival's mean latency to that of the goodput controller."""
    for name, content in files.items():
        at: dict[str, dict[str, float]] = {}
        for row in content["rows"]:
            at.setdefault(row["arrivals"], {})[row["controller"]] = row["latency_mean"]
        if name.endswith("_seeds.json") or not any(arrivals.endswith("x") for arrivals in at):
            continue
        ratios: dict[str, list[float]] = defaultdict(list)
        for latencies in at.values():
            ours = latencies["goodput"]
            for rival, title in _RIVALS.items():
                ratios[title].append(latencies[rival] / ours)
            fixed = [value for rival, value in latencies.items() if rival.startswith("fixed:")]
            ratios["best fixed length"].append(min(fixed) / ours)
        least = {title: min(some) for title, some in ratios.items()}
        worst = min(least, key=lambda title: least[title])
        yield Row(
            name,
            f"{name.removesuffix('.json')}, {len(at)} request rates, simulated",
            "goodput",
            f"plain decoding's mean latency is {least['plain']:.2f} to {max(ratios['plain']):.2f} x goodput's",
            ", ".join(f"{title} {ratio:.3f}" for title, ratio in least.items() if title != "plain"),
            (Goal(f"{worst} {least[worst]:.3f}, goal of all rivals >= 1", round(least[worst], 3) >= 1.0),),
        )


def store_rows(files: Files) -> Iterator[Row]:
    for name, content in files.items():
        if name == "large.json":
            yield from (_large_store_row(name, row) for row in content["rows"])
            continue
        some = {row["case"]: row for row in content["rows"]}
        for title, cases in _STORE_CASES.items():
            found = [some[case] for case in cases if case in some]
            if found:
                shown = ", ".join(
                    f"{short(row['value'])} {_STORE_UNITS.get(row['unit'], row['unit'])}" for row in found
                )
                targets = ", ".join(dict.fromkeys(row["target"] for row in found))
                goal = Goal(f"{shown}; goal {targets}", all(row["met"] for row in found))
                yield Row(name, title, "store", shown, goals=(goal,))


def _large_store_row(name: str, row: Mapping[str, Any]) -> Row:
    stored, loaded, budget = row["stored_tokens"] // 10**6, row["loaded_tokens"] // 10**6, row["budget_bytes"] >> 20
    what = f"a start from {stored} million tokens in {row['stored_namespaces']} namespaces, budget {budget} MiB; SQLite"
    figure = (
        f"{loaded} million loaded in {row['load_s']:.0f} s; index {row['index_bytes'] >> 20} MiB, resident "
        f"{row['resident_bytes'] >> 20} MiB; first draft {row['first_draft_p50_us']:.0f} us"
    )
    return Row(name, what, "store", figure)


_STORE_CASES = {
    "accepted tokens a step of a restarted engine over those of the one that learnt, replay; Redis, SQLite": (
        "warm_start_redis",
        "warm_start_sqlite",
    ),
    "lag from a finished output to another replica, p99, 200 outputs a second; Redis, SQLite": (
        "follower_lag_p99_s",
        "follower_lag_p99_s_sqlite",
    ),
    "lost outputs of 12,000; Redis, SQLite": ("lost_outputs", "lost_outputs_sqlite"),
    "10 million tokens ready to draft from; Redis": ("ready_10m_redis_s",),
    "10 million tokens ready to draft from; SQLite": ("ready_10m_sqlite_s",),
}
_STORE_UNITS = {"ratio of accepted tokens a step": "x"}


def curve_rows(files: Files) -> Iterator[Row]:
    """A row for each set, with each system at the best of its settings for each number of nodes; for each pass one for
    all agents and one for all controls."""
    for name, content in files.items():
        for passed in dict.fromkeys(row["pass"] for row in content["rows"]):
            yield from _curve_of_pass(name, passed, [row for row in content["rows"] if row["pass"] == passed])


def _curve_of_pass(name: str, passed: str, replays: Sequence[Replay]) -> Iterator[Row]:
    ratios: dict[bool, dict[str, list[list[float]]]] = {True: defaultdict(list), False: defaultdict(list)}
    for trace in dict.fromkeys(row["set"] for row in replays):
        some = [row for row in replays if row["set"] == trace]
        ours = [best(some, "agentspec", nodes) for nodes in _NODES]
        arctic = [best(some, "arctic", nodes, own["drafted_per_step"]) for nodes, own in zip(_NODES, ours, strict=True)]
        peers = {"NGRAM": [best(some, "ngram", nodes) for nodes in _NODES], "ArcticInference": arctic}
        is_control = trace.startswith(CONTROLS)
        for peer, theirs in peers.items():
            ratios[is_control][peer].append(
                [own["accepted_per_step"] / other["accepted_per_step"] for own, other in zip(ours, theirs, strict=True)]
            )
        yield Row(
            name,
            f"{trace}, {passed}{', control' if is_control else ''}",
            "suffix drafts",
            _curve(ours),
            "; ".join(f"{peer} {_curve(theirs)}" for peer, theirs in peers.items()),
        )
    if ratios[False]:
        means = {peer: [mean(column) for column in zip(*some, strict=True)] for peer, some in ratios[False].items()}
        yield Row(
            name,
            f"mean of the agents' sets, {passed}",
            "suffix drafts",
            "; ".join(f"{' / '.join(f'{ratio:.2f}' for ratio in some)} x {peer}" for peer, some in means.items()),
            goals=tuple(at_least(f"least x {peer}", min(some), _CURVE_GOALS[peer]) for peer, some in means.items()),
        )
    if ratios[True]:
        least = min(ratio for some in ratios[True].values() for row in some for ratio in row)
        goals = (at_least("least x NGRAM and x ArcticInference", least, 1.0),)
        yield Row(name, f"all controls, {passed}", "suffix drafts", goals=goals)


_NODES = (16, 32, 64)
_CURVE_GOALS = {"NGRAM": 1.12, "ArcticInference": 1.20}


def best(replays: Sequence[Replay], system: str, nodes: int, most_drafted: float | None = None) -> Replay:
    """The replay of a system that accepts most with at most this number of nodes, and this mean number of drafted
    tokens."""
    return max(
        (
            row
            for row in replays
            if (row["system"], row["max_draft_tokens"]) == (system, nodes)
            and (most_drafted is None or row["drafted_per_step"] <= most_drafted)
        ),
        key=lambda row: float(row["accepted_per_step"]),
    )


def fleet_rows(files: Files) -> Iterator[Row]:
    for name, content in files.items():
        if "faults" in content:
            yield from _fault_rows(name, content)
        elif "soak" in content:
            yield from _soak_rows(name, content["soak"])
        else:
            found = {row["setting"]: row["by_latency"] for row in content["rows"]}
            figure = ", ".join(f"{setting} {value}" for setting, value in found.items())
            goal = at_most("chance with extra_key", found["extra_key"], 0.75)
            what = "what latency tells one tenant of another, 0.5 is nothing"
            yield Row(name, what, "fleet", figure, goals=(goal,))


def _fault_rows(name: str, content: Content) -> Iterator[Row]:
    stores = ", ".join(dict.fromkeys(row["store"] for row in content["faults"]))
    changed = sum(row["changed"] for part in ("policies", "sharing", "faults") for row in content[part])
    ratio = mean(row["ratio"] for row in content["sharing"])
    goals = (at_most("changed answers", changed, 0), at_least("ratio", ratio, 0.95))
    text = f"accept length where nothing was learnt, 2 s later; {stores}"
    yield Row(name, text, "fleet", f"{ratio:.3g} x that of who learnt", goals=goals)
    back = {row["fault"]: row["back_seconds"] for row in content["faults"]}
    figure = ", ".join(f"{fault} {seconds:.3g} s" for fault, seconds in back.items())
    slowest = at_most("slowest", max(back.values()), 10, " s")
    yield Row(name, "back after a fault", "fleet", figure, goals=(slowest,))


def _soak_rows(name: str, soak: Content) -> Iterator[Row]:
    kinds = ("changed", "lost", "hung", "not_refused", "ended_replicas")
    wrong = sum(int(soak[kind]) for kind in kinds)
    what = "wrong, lost and hung answers, bad requests not refused, ended replicas"
    asked = f"{soak['calls']} requests in bursts, {soak['aborted']} aborted, {sum(soak['bad_requests'].values())} bad"
    counts = ", ".join(f"{kind} {soak[kind]}" for kind in kinds)
    yield Row(name, asked, "fleet", counts, goals=(at_most(what, wrong, 0),))
    memory = soak["memory"].items()
    figure = ", ".join(f"{kind} {of['most_mib']} MiB ({of['percent_an_hour']:+.3g} %)" for kind, of in memory)
    steepest = at_most("steepest", max(of["percent_an_hour"] for _, of in memory), 5, " %")
    # A shorter soak tells no slope.
    goals = (steepest,) if soak["seconds"] >= 1800 else ()
    text = f"highest memory, and its slope an hour after the warm-up, in {soak['seconds'] / 60:.0f} minutes"
    yield Row(name, text, "fleet", figure, goals=goals)


def _curve(rows: Sequence[Replay]) -> str:
    return " / ".join(map(_accepted, rows))


READERS: dict[str, Reader] = {
    "engine": engine_rows,
    "report": report_rows,
    "simulation": simulation_rows,
    "store": store_rows,
    "fleet": fleet_rows,
    "curve": curve_rows,
}
