"""The contract that all stores fulfil."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from replicas import until
from store_case import SCOPE, A, B, C, StoreCase, data, drain

from agentspec.errors import StoreError, StoreResetError
from agentspec.store import CONTROL, Scope, place

DEADLINE = 20.0


def test_positions_beyond_an_empty_log_wait_for_what_comes(case: StoreCase) -> None:
    store = case.open()
    store.append([(A, b"1")])
    (entry,) = drain(case.reader(store))
    assert store.remove(A, [entry.position]) == 1
    reader = case.reader(store, {A: entry.position})
    assert drain(reader) == []
    store.append([(A, b"2")])
    assert data(drain(reader)) == [b"2"]


def test_a_waiting_reader_wakes_for_an_entry(case: StoreCase) -> None:
    store = case.open()
    reader = case.reader(store)
    assert drain(reader) == []
    late = threading.Timer(0.1, store.append, [[(A, b"1")]])
    late.start()
    began = time.monotonic()
    entries = reader.read(DEADLINE)
    late.join()
    assert data(entries) == [b"1"]
    assert time.monotonic() - began < DEADLINE


def test_a_reader_waits_as_long_as_it_is_told(case: StoreCase) -> None:
    reader = case.reader(case.open())
    began = time.monotonic()
    assert reader.read(0.2) == []
    assert time.monotonic() - began >= 0.2


def test_what_is_no_namespace_is_refused_and_nothing_is_appended(case: StoreCase) -> None:
    store = case.open()
    for wrong in ("tenant", "A" * 32, "a" * 31, "a" * 32 + "\n"):
        with pytest.raises(StoreError, match="32 hexadecimal digits"):
            store.append([(A, b"1"), (wrong, b"2")])
    with pytest.raises(StoreError, match="32 hexadecimal digits"):
        store.manifest("../x")
    with pytest.raises(StoreError, match="no snapshot"):
        store.write_segment(CONTROL, "s", [])
    store.append([])
    assert drain(case.reader(store)) == []


def test_what_is_no_position_is_refused(case: StoreCase) -> None:
    store = case.open()
    store.append([(A, b"1")])
    for call in (
        lambda: store.scan(A, "x y"),
        lambda: store.remove(A, ["x y"]),
        lambda: store.reader({A: "x y"}).read(0),
    ):
        with pytest.raises(StoreError, match="position"):
            call()


def test_namespaces_tell_what_they_hold(case: StoreCase) -> None:
    store = case.open()
    began = time.time()
    store.append([(A, b"x" * 1000)] * 3 + [(CONTROL, b"c")])
    store.write_segment(B, "s", [b"y" * 500, b"y" * 500])
    infos = {info.namespace: info for info in store.namespaces()}
    assert infos.keys() == {A, B}
    assert (infos[A].num_entries, infos[A].snapshot_bytes) == (3, 0)
    assert infos[A].last_position == store.scan(A)[-1].position
    assert 3000 <= infos[A].log_bytes < 20_000
    assert began - 60 < infos[A].last_time < time.time() + 60
    assert (infos[B].num_entries, infos[B].last_position, infos[B].last_time) == (0, None, 0.0)
    assert infos[B].snapshot_bytes >= 1000


def test_trim_by_bytes_removes_the_oldest(case: StoreCase) -> None:
    store = case.open()
    entries = [b"%04d" % number + b"x" * 2000 for number in range(200)]
    for start in range(0, 200, 50):
        store.append([(A, each) for each in entries[start : start + 50]] + [(B, b"x" * 2000)])
    removed = store.trim(A, max_bytes=100_000)
    left = data(store.scan(A))
    assert left == entries[removed:]
    assert 50_000 <= sum(map(len, left)) <= 130_000
    assert next(info for info in store.namespaces() if info.namespace == A).log_bytes <= 130_000
    assert store.trim(A, max_bytes=1 << 30) == 0
    assert store.trim(A, max_bytes=0) == len(left)
    assert store.trim(C, max_bytes=0) == 0
    assert len(store.scan(B)) == 4


def test_trim_by_time_keeps_what_came_later(case: StoreCase) -> None:
    store = case.open()
    store.append([(A, b"1")])
    (info,) = store.namespaces()
    assert store.trim(A, before=info.last_time) == 0
    store.append([(A, b"2")])
    (info,) = store.namespaces()
    # Wait until the store's clock has advanced, so that the next entry is later.
    deadline = time.monotonic() + DEADLINE
    while time.monotonic() < deadline:
        store.append([(B, b"x")])
        later = next(each.last_time for each in store.namespaces() if each.namespace == B)
        if later > info.last_time:
            break
    store.append([(A, b"3")])
    assert store.trim(A, before=later) == 2
    assert data(store.scan(A)) == [b"3"]
    assert store.trim(A) == 0
    assert store.trim(A, before=0.0) == 0


def test_the_tail_of_a_log_holds_its_latest_entries(case: StoreCase) -> None:
    store = case.open()
    assert store.tail(A, 100) == (None, 0)
    rng = random.Random(0)
    sizes = [rng.randrange(1, 40) for _ in range(300)]
    store.append([(A, bytes(size)) for size in sizes] + [(B, bytes(1000))])
    positions = [entry.position for entry in store.scan(A)]
    for _ in range(50):
        first, room = rng.randrange(-1, len(sizes)), rng.randrange(1, sum(sizes) + 100)
        after = positions[first] if first >= 0 else None
        position, num_bytes = store.tail(A, room, after)
        begin = 0 if position is None else positions.index(position) + 1
        assert begin >= first + 1
        assert num_bytes == sum(sizes[begin:])
        # As many as fit, but at least one where there is one.
        assert num_bytes <= room or begin == len(sizes) - 1
        assert begin == first + 1 or num_bytes + sizes[begin - 1] > room


def test_a_segment_that_was_not_finished_does_not_count(case: StoreCase) -> None:
    store = case.open()

    def failing() -> Iterator[bytes]:
        yield b"part"
        raise ZeroDivisionError

    store.write_segment(A, "s", [b"old"])
    for name in ("s", "t"):
        with pytest.raises(ZeroDivisionError):
            store.write_segment(A, name, failing())
    assert list(store.segment(A, "s")) == [b"old"]
    with pytest.raises(StoreError):
        list(store.segment(A, "t"))
    assert [info.snapshot_bytes for info in store.namespaces()] == [3]


def test_one_owner_at_a_time_has_the_lease(case: StoreCase) -> None:
    store, other = case.open(), case.open()
    assert store.lease("me", 60)
    assert not other.lease("you", 60)
    assert not other.lease("you", 0)
    assert store.lease("me", 60)
    assert not store.lease("me", 0)
    assert other.lease("you", 0.05)
    until(lambda: store.lease("me", 60), DEADLINE)


def test_a_loss_between_two_reads_is_found_though_others_wrote_since(case: StoreCase) -> None:
    store = case.open()
    reader = case.reader(store)
    store.append([(A, b"1")])
    drain(reader)
    case.wipe()
    store.append([(A, b"2"), (C, b"3")])
    case.open().append([(A, b"4")])
    with pytest.raises(StoreResetError):
        reader.read(0)
    entries = drain(reader)
    assert data(entries, A) == [b"2", b"4"]
    assert data(entries, C) == [b"3"]
    assert [info.namespace for info in store.namespaces() if info.num_entries == 2] == [A]
    assert place(case.url).scopes() == [SCOPE]


def test_all_readers_see_the_same_order_of_each_log(case: StoreCase) -> None:
    stores = [case.open() for _ in range(3)]
    readers = [case.reader(store) for store in stores]

    def write(store: int) -> None:
        for number in range(40):
            stores[store].append([(A, b"%d:%d" % (store, number)), (B, b"%d:%d" % (store, number))])

    threads = [threading.Thread(target=write, args=[number]) for number in range(3)]
    for thread in threads:
        thread.start()
    seen: list[list[bytes]] = [[], [], []]
    deadline = time.monotonic() + DEADLINE
    for reader, entries in zip(readers, seen, strict=True):
        while len(entries) < 240 and time.monotonic() < deadline:
            entries += [entry.namespace[:1].encode() + entry.data for entry in reader.read(0.2)]
    for thread in threads:
        thread.join()
    for namespace in (b"a", b"b"):
        orders = [[each for each in entries if each.startswith(namespace)] for entries in seen]
        assert len(orders[0]) == 120
        assert orders[0] == orders[1] == orders[2]
        for writer in (b"0", b"1", b"2"):
            numbers = [int(each[3:]) for each in orders[0] if each[1:2] == writer]
            assert numbers == sorted(numbers)


def test_a_store_may_be_used_by_many_threads(case: StoreCase) -> None:
    store = case.open()

    def work(number: int) -> None:
        namespace = f"{number:032x}"
        for count in range(10):
            store.append([(namespace, b"%d" % count)])
            store.write_segment(namespace, "s", [b"x", b"%d" % count])
            assert data(store.scan(namespace))[-1] == b"%d" % count
            assert list(store.segment(namespace, "s"))[1] == b"%d" % count
            store.write_manifest(namespace, b"%d" % count, ["s"])

    with ThreadPoolExecutor(6) as threads:
        list(threads.map(work, range(6)))
    assert sorted(info.num_entries for info in store.namespaces()) == [10] * 6


def test_a_namespace_that_grew_since_a_time_is_not_removed(case: StoreCase) -> None:
    store = case.open()
    assert not store.remove_namespace(A, before=time.time() + 60)
    store.append([(A, b"1")])
    (info,) = store.namespaces()
    assert not store.remove_namespace(A, before=info.last_time)
    assert data(store.scan(A)) == [b"1"]
    assert store.remove_namespace(A, before=info.last_time + 0.01)
    assert list(store.namespaces()) == []


def test_scopes_see_nothing_of_each_other(case: StoreCase) -> None:
    one, two = case.open(), case.open(Scope("other", SCOPE.tokenizer))
    readers = [case.reader(one), case.reader(two)]
    one.append([(A, b"1"), (CONTROL, b"c")])
    one.write_segment(A, "s", [b"x"])
    one.write_manifest(A, b"m", ["s"])
    assert one.lease("me", 60)
    assert two.lease("you", 60)
    two.append([(A, b"2")])
    assert [sorted(data(drain(reader))) for reader in readers] == [[b"1", b"c"], [b"2"]]
    assert two.manifest(A) is None
    assert data(two.scan(A)) == [b"2"]
    assert two.remove_namespace(A)
    assert data(one.scan(A)) == [b"1"]
    assert list(one.segment(A, "s")) == [b"x"]


def test_a_model_keeps_its_tokenizer(case: StoreCase) -> None:
    case.open().append([(A, b"1")])
    with pytest.raises(StoreError, match=r"abababababab.*cdcdcdcdcdcd.*another name.*delete"):
        case.open(Scope(SCOPE.model, "cd" * 32))
    assert data(case.open().scan(A)) == [b"1"]


def test_a_store_opened_without_creating_must_know_the_model(case: StoreCase) -> None:
    case.open().append([(A, b"1")])
    assert data(case.open(create=False).scan(A)) == [b"1"]
    with pytest.raises(StoreError, match=r"'new'; it has: model"):
        case.open(Scope("new", "t"), create=False)
    assert place(case.url).scopes() == [SCOPE]


def test_a_deleted_scope_is_gone_and_others_stay(case: StoreCase) -> None:
    other = Scope("other", "t")
    one, two = case.open(), case.open(other)
    reader = case.reader(one)
    for store in (one, two):
        store.append([(A, b"1"), (CONTROL, b"c")])
        store.write_segment(A, "s", [b"x"])
        store.write_manifest(A, b"m", ["s"])
    drain(reader)
    assert sorted(scope.model for scope in place(case.url).scopes()) == ["model", "other"]
    assert place(case.url).delete_scope(SCOPE)
    assert not place(case.url).delete_scope(SCOPE)
    assert place(case.url).scopes() == [other]
    assert data(two.scan(A)) == [b"1"]
    assert two.manifest(A) == b"m"
    with pytest.raises(StoreResetError):
        reader.read(0)
    again = case.open(Scope(SCOPE.model, "another tokenizer"))
    assert list(again.namespaces()) == []
    assert drain(case.reader(again)) == []


def test_a_closed_store_says_that_it_is_closed(case: StoreCase) -> None:
    store = case.open()
    store.append([(A, b"1")])
    reader = case.reader(store)
    store.close()
    store.close()
    for call in (lambda: store.append([(A, b"2")]), lambda: store.scan(A), store.info, store.reader):
        with pytest.raises(StoreError, match="closed"):
            call()
    assert data(drain(reader)) == [b"1"]
    reader.close()
    reader.close()
    with pytest.raises(StoreError, match="closed"):
        reader.read(0)


def test_a_store_tells_what_it_is(case: StoreCase) -> None:
    store = case.open()
    store.append([(A, b"x" * 5000)])
    store.compact()
    info = store.info()
    assert info.kind == case.kind
    assert info.used_bytes >= 5000
    assert info.server
    assert store.scope == SCOPE
    assert store.url.startswith(case.kind)


def test_many_namespaces_are_followed(case: StoreCase) -> None:
    store = case.open()
    reader = case.reader(store)
    names = [f"{number:032x}" for number in range(1300)]
    for start in range(0, len(names), 100):
        store.append([(name, b"1") for name in names[start : start + 100]])
    assert {entry.namespace for entry in drain(reader)} == set(names)
    store.append([(name, b"2") for name in itertools.islice(names, 0, None, 7)])
    assert data(drain(reader)) == [b"2"] * len(names[::7])
    assert len(drain(case.reader(store))) == len(names) + len(names[::7])
    assert len(list(store.namespaces())) == len(names)
