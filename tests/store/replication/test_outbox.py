"""Outputs that wait for delivery, the part of a log that a snapshot may cover, and deletions that last."""

from __future__ import annotations

import random
import threading

from every import every

from agentspec.store.records import ANY_NAMESPACE, Deletion
from agentspec.store.replication.coverage import Coverage
from agentspec.store.replication.outbox import FinishedOutput, Outbox
from agentspec.store.replication.tombstones import SeenIds, Tombstones


def output(number: int, num_tokens: int = 10, namespace: str = "a") -> FinishedOutput:
    return FinishedOutput(namespace, number, f"r{number}", float(number), (), range(num_tokens), num_tokens)


def ids(outputs: list[FinishedOutput]) -> list[int]:
    return [item.output_id for item in outputs]


def test_an_output_larger_than_the_bound_goes_alone() -> None:
    outbox = Outbox(max_tokens=5)
    outbox.put(output(1))
    outbox.put(output(2))
    assert ids(outbox.take(10, 1, 0.0)) == [2]


def test_batches_end_at_either_limit() -> None:
    outbox = Outbox(max_tokens=1000)
    for number in range(5):
        outbox.put(output(number))
    assert ids(outbox.take(2, 1000, 0.0)) == [0, 1]
    assert ids(outbox.take(5, 25, 0.0)) == [2, 3]
    assert ids(outbox.take(5, 25, 0.0)) == [4]
    assert outbox.take(5, 25, 0.0) == []


def test_what_is_put_back_comes_first_and_is_dropped_first() -> None:
    outbox = Outbox(max_tokens=40)
    for number in range(4):
        outbox.put(output(number))
    taken = outbox.take(2, 1000, 0.0)
    outbox.put(output(4))
    outbox.put_back(taken)
    assert outbox.num_dropped == 1
    assert len(outbox) == 4
    assert ids(outbox.take(10, 1000, 0.0)) == [1, 2, 3, 4]


def test_what_is_set_aside_counts_and_comes_back_first() -> None:
    outbox = Outbox(max_tokens=50)
    for number in range(4):
        outbox.put(output(number))
    taken = outbox.take(3, 1000, 0.0)
    outbox.delivered(aside=taken[:2], num_dropped=1)
    assert (len(outbox), outbox.waiting_tokens, outbox.num_dropped) == (3, 30, 1)
    for number in range(4, 7):
        outbox.put(output(number))
    # The oldest output, which is set aside, was dropped.
    assert (len(outbox), outbox.num_dropped) == (5, 2)
    outbox.bring_back()
    assert ids(outbox.take(10, 1000, 0.0)) == [1, 3, 4, 5, 6]
    outbox.delivered()
    assert (len(outbox), outbox.waiting_tokens) == (0, 0)


def test_take_waits_for_an_output_and_close_ends_the_wait() -> None:
    outbox = Outbox(max_tokens=1000)
    found: list[list[int]] = []

    def take_twice() -> None:
        found.append(ids(outbox.take(10, 1000, 60.0)))
        found.append(ids(outbox.take(10, 1000, 60.0)))

    thread = threading.Thread(target=take_twice)
    thread.start()
    outbox.put(output(7))
    while not found:
        thread.join(0.001)
    outbox.close()
    thread.join(30.0)
    assert found == [[7], []]


def test_random_operations_keep_order_and_counts() -> None:
    chance = random.Random(0)
    outbox = Outbox(max_tokens=100)
    delivered: list[int] = []
    for number in range(2000):
        outbox.put(output(number, chance.randrange(1, 40)))
        if chance.random() < 0.4:
            taken = outbox.take(chance.randrange(1, 5), 60, 0.0)
            if chance.random() < 0.3:
                outbox.put_back(taken)
            else:
                delivered += ids(taken)
        assert outbox.waiting_tokens <= 100
    delivered += ids(outbox.take(10_000, 10_000, 0.0))
    assert delivered == sorted(set(delivered))
    outbox.delivered()
    assert len(delivered) + outbox.num_dropped == 2000


def test_a_request_is_deleted_in_its_namespace_only() -> None:
    tombstones = Tombstones()
    tombstones.add(Deletion("a", "r1", 5.0))
    assert tombstones.covers("a", "r1", 4.0)
    # The request is covered whenever it finishes, because its id is not used again.
    assert tombstones.covers("a", "r1", 6.0)
    assert not tombstones.covers("b", "r1", 4.0)
    assert not tombstones.covers("a", "r2", 4.0)


def test_a_request_of_an_unknown_namespace_is_deleted_in_all() -> None:
    tombstones = Tombstones()
    tombstones.add(Deletion(ANY_NAMESPACE, "r1", 5.0))
    assert tombstones.covers("a", "r1", 4.0)
    assert tombstones.covers("b", "r1", 4.0)
    assert not tombstones.covers("b", "r2", 4.0)


def test_a_namespace_is_deleted_up_to_the_latest_time() -> None:
    tombstones = Tombstones()
    tombstones.add(Deletion("a", None, 5.0))
    tombstones.add(Deletion("a", None, 3.0))
    assert tombstones.covers("a", "r1", 5.0)
    assert not tombstones.covers("a", "r1", 5.1)
    assert not tombstones.covers("b", "r1", 1.0)
    assert tombstones.of_namespaces() == {"a": 5.0}


def test_it_goes_on_from_a_loaded_snapshot() -> None:
    coverage = Coverage()
    coverage.start("a", "p7")
    assert coverage.advance("a", ()) == "p7"
    coverage.read("a", "p8", 8)
    assert coverage.advance("a", ()) == "p7", "it was read after the engine was asked"
    coverage.begin("a")
    assert coverage.advance("a", {8}) == "p7"
    assert coverage.advance("b", ()) == ""
    coverage.forget()
    assert coverage.advance("a", ()) == ""


def test_covered_outputs_are_sealed_in_any_order_of_sealing() -> None:
    chance = random.Random(1)
    coverage = Coverage()
    unsealed: set[int] = set()
    for number in range(300):
        coverage.read("a", str(number), number)
        unsealed.add(number)
        for sealed in chance.sample(sorted(unsealed), k=min(len(unsealed), chance.randrange(3))):
            unsealed.remove(sealed)
        coverage.begin("a")
        position = coverage.advance("a", unsealed)
        covered = range(int(position) + 1) if position else range(0)
        assert not unsealed & set(covered)
        assert min(unsealed, default=number + 1) == len(covered)


@every("seed", range(5))
def test_at_least_the_latest_ids_are_remembered_and_at_most_twice_as_many(seed: int) -> None:
    draw, number = random.Random(seed), 1 + 3 * seed
    seen, added = SeenIds(number), list[int]()
    for _ in range(500):
        one = draw.randint(1, 4 * number)
        if seen.add(one):
            assert one not in added[-number:]
            added.append(one)
        else:
            assert one in added[-2 * number :]
    seen.update(range(1000, 1100))
    assert not any(seen.add(one) for one in range(1100 - number, 1100))
    assert seen.add(1099 - 2 * number)
    seen.discard({1099, 5})
    assert [seen.add(one) for one in (1099, 1099, 1098)] == [True, False, number == 1]
