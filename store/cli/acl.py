"""`agentspec store acl`."""

from __future__ import annotations

import argparse
import json

from agentspec.store.redis.acl import acl_rules


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("user", metavar="USER", help="the name of the Redis user")
    parser.add_argument("--cluster", action="store_true", help="the store is a Redis cluster (redis-cluster://)")
    parser.add_argument("--database", action="store_true", help="the store is in a database other than 0")
    parser.add_argument("--json", action="store_true", help="print it as a JSON object")


def run(args: argparse.Namespace) -> int:
    rules = acl_rules(args.user, cluster=args.cluster, database=args.database)
    print(json.dumps({"rules": rules}) if args.json else rules)
    return 0
