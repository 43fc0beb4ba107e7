"""Rows of results that need no server, or judge one from outside: engine, controllers, the report, simulations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from agentspec.evals.page.row import Content, Files, Goal, Row, at_least, at_most, clients, short

_RIVALS = {
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
    "stall": "longest draft while outputs are finished",
    "threads_draft_bs64_hot": "draft on two threads, 64 requests",
    "threads_draft_bs16_hot": "draft on two threads, 16 requests",
}
# The cases of which each has the sizes of its file's global indexes.
_SIZED = ("memory", "threads_draft_bs64_hot")


def engine_rows(files: Files) -> list[Row]:
    rows = []
    largest_of = {
        name: max((row["size"] for row in content["rows"] if row["case"] in _SIZED), key=_tokens)
        for name, content in files.items()
    }
    for name, largest in sorted(largest_of.items(), key=lambda item: _tokens(item[1])):
        for case, title in _ENGINE_CASES.items():
            some = [row for row in files[name]["rows"] if (row["case"], row["size"]) == (case, largest)]
            if some:
                rows.append(
                    Row(
                        f"{title}, {largest.upper()} tokens",
                        "agentspec",
                        f"{short(some[0]['ours'])} {some[0]['unit']}",
                        ", ".join(f"{row['peer']} {short(row['theirs'])}" for row in some),
                        (),
                        name,
                    )
                )
    return rows


def _tokens(size: str) -> int:
    return int(size[:-1]) * {"k": 1_000, "m": 1_000_000}[size[-1]]


def _replays(name: str, content: Content) -> Iterator[Row]:
    """Accepted and drafted tokens a step, at most 16 drafted; for a peer with several settings, the best one."""
    for trace, systems in best_replays(content).items():
        ours = systems.get("agentspec")
        if ours is None:
            continue
        peers = {system: row for system, row in systems.items() if system in ("arctic", "ngram", "suffixdecoding")}
        setting = "" if ours["setting"] == "defaults" else f", {ours['setting']}"
        yield Row(
            trace,
            f"agentspec{setting}",
            _accepted(ours),
            ", ".join(f"{_PEERS[system]} {_accepted(row)}" for system, row in peers.items()),
            (),
            name,
        )


_PEERS = {"arctic": "ArcticInference", "ngram": "NGRAM", "suffixdecoding": "paper's rule"}


def _accepted(row: Mapping[str, Any]) -> str:
    return f"{row['accepted_per_step']:.2f} ({row['drafted_per_step']:.1f})"


def best_replays(content: Content) -> dict[str, dict[str, Mapping[str, Any]]]:
    """For each trace and pass, the row of each system that accepts most, at most 16 tokens drafted."""
    found: dict[str, dict[str, Mapping[str, Any]]] = {}
    for row in content["rows"]:
        if row["max_draft_tokens"] == 16:
            of_trace = found.setdefault(f"{row['set']}, {row['pass']}", {})
            best = of_trace.get(row["system"])
            if best is None or row["accepted_per_step"] > best["accepted_per_step"]:
                of_trace[row["system"]] = row
    return found


def control_rows(files: Files) -> list[Row]:
    rows = []
    for name, content in files.items():
        for batch in (256, 64, 1):
            some = {
                row["controller"]: row["value"]
                for row in content["rows"]
                if (row["batch"], row["drafts"]) == (batch, "full")
            }
            ours = some.pop("goodput", None)
            if ours is not None:
                goals = (at_most("time", ours, 0.3, " ms"),) if batch == 256 else ()
                others = ", ".join(f"{controller} {value:.3f}" for controller, value in some.items())
                title = f"deciding for {batch} {'row' if batch == 1 else 'rows'}"
                rows.append(Row(title, "goodput", f"{ours:.3f} ms", others, goals, name))
    return rows


def report_rows(files: Files) -> list[Row]:
    rows: list[Row] = []
    for name, content in files.items():
        for part, reader in (
            ("ranking", _ranking),
            ("prediction", _prediction),
            ("halves", _halves),
            ("verdict", _verdict),
        ):
            if part in content:
                rows += reader(name, content[part])
        rows += [_scale(name, row) for row in content.get("scale", ())]
    return rows


def _halves(name: str, found: Mapping[str, Any]) -> Iterator[Row]:
    least, most = found["goal"]
    for row in found["rows"]:
        for state in ("cold", "warm"):
            of = row[state]
            goal = f"{of['held']:.0%} of {row['draws']} held, goal {least:.0%} to {most:.0%}"
            yield Row(
                f"90 % intervals of the accept length of {row['set']}, {state}, from half of {row['sessions']} sessions",
                "report",
                f"{of['reported']:.2f}, -{of['below']:.0%} and +{of['above']:.0%}",
                f"replay of the other half {of['replayed']:.2f}",
                (Goal(goal, least <= of["held"] <= most),),
                name,
            )


def _ranking(name: str, found: Mapping[str, Any]) -> Iterator[Row]:
    value = found["spearman_entropy_cold"]
    yield Row(
        f"rank correlation (Spearman) of low entropy and accept length, {found['ranked']} sets and stages",
        "report",
        f"{value:.2f}",
        f"with 100 outputs each {found['spearman_entropy_100_cold']:.2f}",
        (at_least("correlation", value, found["goal"]),),
        name,
    )


def _prediction(name: str, found: Mapping[str, Any]) -> Iterator[Row]:
    goal = f"{found['goal']:.0%}"
    hits = samples = 0
    for row in found["rows"]:
        within, of = map(int, row["within_goal"].split(" of "))
        hits, samples = hits + within, samples + of
        yield Row(
            f"accept length of {row['set']} from 100 outputs",
            "report",
            f"{min(row['predicted']):.2f} to {max(row['predicted']):.2f} in {of} samples",
            f"replayed {row['replayed']:.2f}",
            (Goal(f"within {goal}: {row['within_goal']} samples, goal all", within == of),),
            name,
        )
    yield Row("all sets together", "report", f"{hits} of {samples} samples within {goal}", "", (), name)


def _verdict(name: str, found: Mapping[str, Any]) -> Iterator[Row]:
    rows = found["rows"]
    measured = [row["measured"] for row in rows if row["measured"] is not None]
    inside = f"{found['contained']} of {len(rows)}"
    kinds = " and ".join(dict.fromkeys(row["workload"] for row in rows))
    numbers = " and ".join(clients(number) for number in dict.fromkeys(row["concurrency"] for row in rows))
    yield Row(
        f"speed-up over plain SGLang: {kinds}, {numbers}, cold and warm, tiny-sql",
        "report",
        f"{inside} measured speed-ups in the predicted range",
        f"measured {min(measured):.2f} to {max(measured):.2f}",
        (Goal(f"in the range {inside}, goal all", found["contained"] == len(rows)),),
        name,
    )


def _scale(name: str, row: Mapping[str, Any]) -> Row:
    million = row["output_tokens"] / 1e6
    goals = [at_most("memory", row["peak_mb"], row["memory_mb"], " MB")]
    if million < 2:
        goals = [at_most("time", row["seconds"], 60, " s"), at_most("memory", row["peak_mb"], 2048, " MB")]
    figure = f"{row['seconds']:.0f} s, {row['peak_mb']:.0f} MB"
    return Row(f"reading a log of {million:.0f} million output tokens", "report", figure, "", tuple(goals), name)


def simulation_rows(files: Files) -> list[Row]:
    """Recorded traces at all rates: the least ratio of each rival's mean latency to that of the goodput controller."""
    rows = []
    for name, content in files.items():
        at: dict[str, dict[str, float]] = {}
        for row in content["rows"]:
            at.setdefault(row["arrivals"], {})[row["controller"]] = row["latency_mean"]
        if name.endswith("_seeds.json") or not any(arrivals.endswith("x") for arrivals in at):
            continue
        least: dict[str, float] = {}
        for latencies in at.values():
            ratios = {title: latencies[rival] / latencies["goodput"] for rival, title in _RIVALS.items()}
            ratios["plain"] = latencies["fixed:0"] / latencies["goodput"]
            fixed = min(value for rival, value in latencies.items() if rival.startswith("fixed:"))
            ratios["best fixed length"] = fixed / latencies["goodput"]
            least = {title: min(ratio, least.get(title, ratio)) for title, ratio in ratios.items()}
        plain = [latencies["fixed:0"] / latencies["goodput"] for latencies in at.values()]
        goals = [
            Goal(f"{title} {ratio:.3f}, goal >= {target:g}", round(ratio, 3) >= target)
            for title, ratio in least.items()
            for target in [0.99 if title == "best fixed length" else 1.0]
        ]
        rows.append(
            Row(
                f"{name.removesuffix('.json')}, {len(at)} request rates, simulated",
                "goodput",
                f"plain decoding's mean latency is {min(plain):.2f} to {max(plain):.2f} x goodput's",
                "least over all rates of each rival's mean latency over goodput's: see goals",
                tuple(goals),
                name,
            )
        )
    return rows


def text_to_sql_rows(files: Files) -> list[Row]:
    rows: list[Row] = []
    for name, content in files.items():
        if "rows" in content:
            rows += _replays(name, content)
        elif "accuracy" in content:
            rows.append(
                Row(
                    f"{content['questions']} questions, execution accuracy",
                    "staged agents, reference that knows the gold answers",
                    f"{content['accuracy']:.1%}",
                    "",
                    (),
                    name,
                )
            )
    return rows


READERS: dict[str, Callable[[Files], list[Row]]] = {
    "engine": engine_rows,
    "control": control_rows,
    "report": report_rows,
    "simulation": simulation_rows,
    "text-to-sql": text_to_sql_rows,
}
