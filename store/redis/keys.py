"""The keys of a Redis store, version 1. Those of one scope are in one slot of a cluster.

    agentspec:1:models         hash: model -> tokenizer

    agentspec:1:{SCOPE}: and
      epoch                    string, random: another value, or none, means that the contents were replaced
      lease                    string with a time to live: the replica that maintains the scope
      names                    set: the namespaces that have a log or a snapshot
      news                     stream, the last 4096 changes: n = a namespace whose log grew, r = one that was removed
      control                  stream, field d: the log of CONTROL, the last 30 days
      log:NS                   stream, field d: a namespace's log; an entry's id is its position
      manifest:NS              string
      segments:NS              hash: the name of a whole segment -> its number of bytes
      segment:NS:NAME          hash: 0, 1, ... -> a chunk; n -> their number; w -> random, who wrote it
      writing:NS:NAME:RANDOM   the same while it is written; lives for ten minutes after each chunk

A namespace thus has three keys and one more for each of its few segments. Only the lease and unfinished segments have a
time to live, so a server that evicts keys with one (volatile-*) cannot evict anything else.
"""

from __future__ import annotations

from agentspec.store.base import CONTROL, Scope

PREFIX = "agentspec:1:"
MODELS = PREFIX + "models"
NEWS_LENGTH = 4096


class RedisKeys:
    """The names of a scope's keys."""

    def __init__(self, scope: Scope) -> None:
        self.prefix = prefix = f"{PREFIX}{{{scope.id}}}:"
        self.epoch = prefix + "epoch"
        self.lease = prefix + "lease"
        self.names = prefix + "names"
        self.news = prefix + "news"
        self.control = prefix + "control"

    def log(self, namespace: str) -> str:
        return self.control if namespace == CONTROL else f"{self.prefix}log:{namespace}"

    def manifest(self, namespace: str) -> str:
        return f"{self.prefix}manifest:{namespace}"

    def segments(self, namespace: str) -> str:
        return f"{self.prefix}segments:{namespace}"

    def segment(self, namespace: str, name: str) -> str:
        return f"{self.prefix}segment:{namespace}:{name}"

    def writing(self, namespace: str, name: str, token: str) -> str:
        return f"{self.prefix}writing:{namespace}:{name}:{token}"

    def probe(self, token: str) -> str:
        """A temporary key that exists only while a store is opened."""
        return f"{self.prefix}writing:probe:{token}"

    def types(self) -> dict[str, str]:
        """The required type of each key that belongs to no namespace, if the key exists."""
        return {
            self.epoch: "string",
            self.lease: "string",
            self.names: "set",
            self.news: "stream",
            self.control: "stream",
        }
