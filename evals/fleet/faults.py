"""What a fleet is put through: policies of the router, questions that another replica learnt, and faults."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentspec.evals.fleet.fleet import Router, Store, kill, settle, store_health
from agentspec.evals.fleet.work import Asker, Tally, traffic
from agentspec.integrations.servers.server import Server

LEAST_RATIO = 0.95
"""Least accept length of a replica that did not learn a kind of question itself, beside that of one that did."""
SHARED_SECONDS = 2.0
"""Time in which what one replica learnt must have reached the others."""
BACK_SECONDS = 10.0
"""Time after a fault in which it must reach them again."""
# What a replica read takes this long to be indexed at most, while it answers requests.
_INDEXING_SECONDS = 1.0
_BEFORE_SECONDS = 3.0
# A replica notices a closed connection before this.
_NOTICED_SECONDS = 0.5


@dataclass(frozen=True)
class Fleet:
    """Running replicas with a store, and the work for them."""

    store: Store
    replicas: Sequence[Server]
    asker: Asker
    clients: int

    def teach(self, tenant: str) -> Tally:
        """The first replica answers questions of a kind."""
        return self.asker.ask(self.replicas[0].url, self.asker.taught, self.clients, tenant)

    def ask(self, number: int, tenant: str) -> Tally:
        """A replica answers other questions of that kind."""
        return self.asker.ask(self.replicas[number].url, self.asker.asked, self.clients, tenant)


def policy_row(fleet: Fleet, policy: str, log: Path) -> dict[str, Any]:
    """Asks all questions through a router."""
    with Router(fleet.replicas, policy, log) as router:
        before = [_requests(server) for server in fleet.replicas]
        tally = fleet.asker.ask(router.url, fleet.asker.questions, fleet.clients, f"policy {policy}")
        after = [_requests(server) for server in fleet.replicas]
    return {
        "policy": policy,
        **tally.figures(),
        "calls_of_replicas": [y - x for x, y in zip(before, after, strict=True)],
    }


def _requests(server: Server) -> int:
    counted: dict[str, int] = (server.agentspec_state() or {}).get("requests", {})
    return sum(counted.values())


def sharing_row(fleet: Fleet, repeat: int) -> dict[str, Any]:
    """Accept lengths of the first and the last replica on questions of a kind that only the first one was asked before.
    Each comparison has a tenant of its own, so that nothing else was learnt for it."""
    fleet.teach(f"own {repeat}")
    time.sleep(SHARED_SECONDS)
    own = fleet.ask(0, f"own {repeat}")
    nothing = fleet.ask(-1, f"nothing {repeat}")
    fleet.teach(f"shared {repeat}")
    time.sleep(SHARED_SECONDS)
    shared = fleet.ask(-1, f"shared {repeat}")
    return {
        "calls": own.calls,
        "changed": own.changed + nothing.changed + shared.changed,
        "lost": own.lost + nothing.lost + shared.lost,
        "accept_length_after_learning": round(own.accept_length, 3),
        "accept_length_after_nothing": round(nothing.accept_length, 3),
        "accept_length_after_sharing": round(shared.accept_length, 3),
        "ratio": round(shared.accept_length / own.accept_length, 3),
        "lag_seconds": store_health(fleet.replicas[-1]).get("lag_seconds"),
    }


@dataclass(frozen=True)
class Fault:
    """Something that breaks while clients ask a fleet."""

    lose: Callable[[], object]
    """Breaks it."""
    bring_back: Callable[[], object] | None
    """Mends it; None if others take over."""
    loses_calls: bool = False
    """Whether clients reach nothing meanwhile, so that calls are lost whatever replicas do."""


def faults_of(fleet: Fleet, kind: str, router: Router) -> dict[str, Fault]:
    """By name. The last replica is the one that is killed; the first one learns meanwhile."""
    last = fleet.replicas[-1]
    found = {f"{kind} lost": Fault(fleet.store.lose, fleet.store.bring_back)}
    if kind == "redis":
        found["router restarted"] = Fault(router.kill, router.start, loses_calls=True)
        found["replica replaced"] = Fault(lambda: kill(last), last.__enter__)
    return found


def fault_rows(
    fleet: Fleet, kind: str, log: Path, own_accept_length: float, names: Sequence[str]
) -> Iterator[dict[str, Any]]:
    """A row for each fault, while clients ask through the router.

    Args:
        fleet: With a store of this kind.
        kind: Of the store.
        log: Of the router.
        own_accept_length: That of the replica that learnt, without a fault.
        names: Those of the faults to measure; () for all.
    """
    with Router(fleet.replicas, "cache_aware", log) as router, ThreadPoolExecutor(1) as pool:
        for name, fault in faults_of(fleet, kind, router).items():
            if names and name not in names:
                continue
            with traffic(fleet.asker, router, fleet.clients) as meanwhile:
                time.sleep(_BEFORE_SECONDS)
                fault.lose()
                if fault.bring_back is None:
                    # Whoever takes over may do so while the replica learns.
                    taking_over = pool.submit(_settle_later, fleet)
                    taught = fleet.teach(name)
                    back = _NOTICED_SECONDS + taking_over.result()
                    settle(fleet.replicas)
                else:
                    taught = fleet.teach(name)
                    fault.bring_back()
                    back = settle(fleet.replicas)
                time.sleep(_INDEXING_SECONDS)
                back += _INDEXING_SECONDS
                asked = fleet.ask(-1, name)
            settle(fleet.replicas)
            health = [store_health(server) for server in fleet.replicas]
            yield {
                "fault": name,
                "back_seconds": round(back, 2),
                "accept_length": round(asked.accept_length, 3),
                "ratio": round(asked.accept_length / own_accept_length, 3) if own_accept_length else None,
                "loses_calls": fault.loses_calls,
                "lost_at_replicas": taught.lost + asked.lost,
                "traffic": meanwhile.figures(),
                "changed": meanwhile.changed + taught.changed + asked.changed,
                "dropped_outputs": sum(each["dropped_outputs"] for each in health),
                "store_errors": sum(each["errors"] for each in health),
            }


def _settle_later(fleet: Fleet) -> float:
    time.sleep(_NOTICED_SECONDS)
    return settle(fleet.replicas)


def missed(result: dict[str, Any]) -> list[str]:
    """The bars that a result misses, in words."""
    found = []
    for row in (*result["policies"], *result["sharing"]):
        if row["lost"] or row["changed"]:
            what = row.get("policy", "sharing")
            found.append(f"{what}: {row['lost']} calls lost, {row['changed']} answers changed; none may be")
    ratios = [row["ratio"] for row in result["sharing"]]
    if ratios and sum(ratios) / len(ratios) < LEAST_RATIO:
        found.append(f"sharing: ratios {ratios}, at least {LEAST_RATIO} in the mean is needed")
    for row in result["faults"]:
        lost = row["lost_at_replicas"] + (0 if row["loses_calls"] else row["traffic"]["lost"])
        late = row["back_seconds"] > BACK_SECONDS or (row["ratio"] is not None and row["ratio"] < LEAST_RATIO)
        if lost or late or row["changed"] or row["dropped_outputs"]:
            found.append(
                f"{row['fault']}: {lost} calls lost, {row['changed']} answers changed, {row['dropped_outputs']} outputs "
                f"dropped, ratio {row['ratio']} after {row['back_seconds']} s"
            )
    return found
