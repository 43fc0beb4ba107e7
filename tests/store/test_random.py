"""Random sequences of calls to each store, compared step by step with a model in plain Python."""

from __future__ import annotations

import random

import pytest
from store_case import A, B, C, StoreCase, data, drain

from agentspec.errors import StoreError, StoreResetError
from agentspec.store import CONTROL, Store
from agentspec.store.base import Entry, Reader

NAMESPACES = [A, B, C, CONTROL]
STEPS = 150


class Model:
    """The entries that a store must hold, and those that a reader must still return."""

    def __init__(self) -> None:
        self.logs: dict[str, list[bytes]] = {}
        self.unread: dict[str, list[bytes]] = {}
        self.manifests: dict[str, bytes] = {}
        self.segments: dict[str, dict[str, list[bytes]]] = {}

    def append(self, namespace: str, data: bytes) -> None:
        self.logs.setdefault(namespace, []).append(data)
        self.unread.setdefault(namespace, []).append(data)

    def drop(self, namespace: str, gone: list[bytes]) -> None:
        """Removes the entries with this data. No two entries have the same data."""
        for log in (self.logs, self.unread):
            log[namespace] = [each for each in log.get(namespace, []) if each not in gone]

    def remove_namespace(self, namespace: str) -> bool:
        self.unread.pop(namespace, None)
        had = bool(self.logs.pop(namespace, None))
        had |= self.manifests.pop(namespace, None) is not None
        return bool(self.segments.pop(namespace, None)) or had


class Life:
    """A store and its model."""

    def __init__(self, case: StoreCase, seed: int) -> None:
        self.random = random.Random(seed)
        self.case = case
        self.stores: list[Store] = [case.open(), case.open()]
        self.reader: Reader = case.reader(self.stores[0])
        self.model = Model()
        self.at: dict[tuple[str, str], bytes] = {}
        """The entry of each position. No position is used again."""
        self.count = 0

    def step(self) -> None:
        steps = [self.append] * 6 + [self.read] * 4 + [self.remove, self.trim, self.segment, self.manifest, self.resume]
        rare = [self.remove_namespace, self.wipe]
        self.random.choice(rare if self.random.random() < 0.05 else steps)()
        self.check()

    def store(self) -> Store:
        return self.random.choice(self.stores)

    def tenant(self) -> str:
        return self.random.choice(NAMESPACES[:3])

    def append(self) -> None:
        entries = []
        for _ in range(self.random.randint(1, 6)):
            self.count += 1
            entries.append((self.random.choice(NAMESPACES), b"%d:" % self.count + self.random.randbytes(50)))
        self.store().append(entries)
        for namespace, each in entries:
            self.model.append(namespace, each)

    def read(self) -> None:
        max_bytes = self.random.choice([1, 200, 1 << 20])
        entries = self.reader.read(0, max_bytes)
        assert len(entries) < 2 or sum(map(len, data(entries))) <= max_bytes
        assert entries or not any(self.model.unread.values())
        for entry in entries:
            assert self.model.unread[entry.namespace].pop(0) == entry.data

    def resume(self) -> None:
        """Replaces the reader by a new one that continues at the same position."""
        positions = {}
        for namespace, log in self.model.logs.items():
            read = len(log) - len(self.model.unread.get(namespace, []))
            if read:
                positions[namespace] = self.store().scan(namespace)[read - 1].position
        self.reader.close()
        self.reader = self.case.reader(self.store(), positions)

    def remove(self) -> None:
        namespace = self.random.choice(NAMESPACES)
        held = self.store().scan(namespace)
        doomed = self.random.sample(held, self.random.randint(0, min(3, len(held))))
        for expected in (len(doomed), 0):
            assert self.store().remove(namespace, [entry.position for entry in doomed]) == expected
        self.model.drop(namespace, data(doomed))

    def trim(self) -> None:
        namespace = self.random.choice(NAMESPACES)
        held = data(self.store().scan(namespace))
        removed = self.store().trim(namespace, max_bytes=self.random.choice([0, 500, 2000, 1 << 20]))
        self.model.drop(namespace, held[:removed])

    def segment(self) -> None:
        namespace, name = self.tenant(), self.random.choice(["s1", "s2", "s3"])
        chunks = [self.random.randbytes(self.random.randint(0, 2000)) for _ in range(self.random.randint(0, 4))]
        self.store().write_segment(namespace, name, chunks)
        self.model.segments.setdefault(namespace, {})[name] = chunks

    def manifest(self) -> None:
        namespace, manifest = self.tenant(), self.random.randbytes(20)
        names = self.random.sample(["s1", "s2", "s3"], self.random.randint(0, 2))
        held = self.model.segments.get(namespace, {})
        if set(names) <= held.keys():
            self.store().write_manifest(namespace, manifest, names)
            self.model.manifests[namespace] = manifest
            self.model.segments[namespace] = {name: held[name] for name in names}
        else:
            with pytest.raises(StoreError):
                self.store().write_manifest(namespace, manifest, names)

    def remove_namespace(self) -> None:
        namespace = self.tenant()
        removed = self.store().remove_namespace(namespace)
        # Stores differ in whether an empty log counts.
        assert removed >= self.model.remove_namespace(namespace)
        assert not self.store().remove_namespace(namespace)

    def wipe(self) -> None:
        # A reader that has not read anything would not notice the loss.
        drain(self.reader)
        self.case.wipe()
        self.model = Model()
        self.at.clear()
        with pytest.raises(StoreResetError):
            self.reader.read(0)

    def scan(self, store: Store, namespace: str) -> list[Entry]:
        """The whole log, page by page."""
        entries: list[Entry] = []
        max_bytes = self.random.choice([1, 300, 1 << 20])
        while part := store.scan(namespace, entries[-1].position if entries else None, max_bytes=max_bytes):
            assert len(part) == 1 or sum(map(len, data(part))) <= max_bytes
            entries += part
        return entries

    def check(self) -> None:
        store, model = self.store(), self.model
        for namespace in NAMESPACES:
            entries = self.scan(store, namespace)
            assert data(entries) == model.logs.get(namespace, [])
            for each in entries:
                assert self.at.setdefault((namespace, each.position), each.data) == each.data
        for namespace in NAMESPACES[:3]:
            assert store.manifest(namespace) == model.manifests.get(namespace)
            held = model.segments.get(namespace, {})
            for name in ("s1", "s2", "s3"):
                if name in held:
                    assert list(store.segment(namespace, name)) == held[name]
                else:
                    with pytest.raises(StoreError):
                        list(store.segment(namespace, name))
        infos = {info.namespace: info for info in store.namespaces()}
        for namespace in NAMESPACES[:3]:
            num_entries = infos[namespace].num_entries if namespace in infos else 0
            snapshot = infos[namespace].snapshot_bytes if namespace in infos else 0
            assert num_entries == len(model.logs.get(namespace, []))
            chunks = [chunk for each in model.segments.get(namespace, {}).values() for chunk in each]
            assert snapshot == sum(map(len, chunks)) + len(model.manifests.get(namespace, b""))


@pytest.mark.parametrize("seed", range(4))
def test_a_random_life_is_as_its_model_s(case: StoreCase, seed: int) -> None:
    life = Life(case, seed)
    for _ in range(STEPS):
        life.step()
    entries = drain(life.reader)
    for namespace in NAMESPACES:
        assert data(entries, namespace) == life.model.unread.get(namespace, [])
