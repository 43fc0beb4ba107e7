"""Records the chains that a server's draft model drafts for recorded prompts, for the search of a stopping threshold."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle, islice

import numpy as np

from agentspec.errors import ConfigError
from agentspec.integrations.servers.server import RunningServer
from agentspec.integrations.servers.told_steps import told_since_then
from agentspec.progress import Progress
from agentspec.scheduling.baselines.threshold_search import DraftedChains

_ENOUGH = 2000
_LEAST = 50
_TOKENS = 128


def drafted_chains(server: RunningServer, prompts: Sequence[str], rows: int, most_tokens: int) -> DraftedChains:
    """Sends prompts until there are enough chains, or none is left.

    Args:
        server: One with AGENTSPEC_PROFILING=1 and a draft model that drafts one chain for every row.
        prompts: They are sent in this order, each once.
        rows: Number of prompts at a time.
        most_tokens: Longer prompts are cut at the left.

    Raises:
        ConfigError: There are too few chains.
        ServerError: The server does not tell its steps.
    """
    told = told_since_then(server, "chains")
    tokenized = server.post("/tokenize", {"prompt": list(prompts)})["tokens"]
    probabilities: list[list[float]] = []
    accepted: list[int] = []
    with Progress("chains", _ENOUGH) as progress:
        for start in range(0, len(tokenized), rows):
            # The last batch is filled up, so that all steps have the same number of rows.
            ids = [tokens[-most_tokens:] for tokens in islice(cycle(tokenized), start, start + rows)]
            sampling = {"temperature": 0, "max_new_tokens": _TOKENS}
            server.post("/generate", {"input_ids": ids, "sampling_params": sampling})
            for chances, kept in told():
                probabilities.append(chances)
                accepted.append(kept)
            progress.update(min(len(accepted), _ENOUGH))
            if len(accepted) >= _ENOUGH:
                break
    if len(accepted) < _LEAST:
        raise ConfigError(
            f"the answers to {len(prompts)} prompts gave {len(accepted)} drafts, and {_LEAST} are needed; pass a log with "
            "more calls"
        )
    # Near the end of the context drafts are shorter.
    longest = max(map(len, probabilities))
    whole = [number for number, chances in enumerate(probabilities) if len(chances) == longest]
    return DraftedChains(np.array([probabilities[i] for i in whole]), np.array([accepted[i] for i in whole]))
