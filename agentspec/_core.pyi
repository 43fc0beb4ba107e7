"""Types of the native module that agentspec/native/bindings/ defines."""

import enum
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

NUM_BIASES: int
"""Number of biases, which are the first weights of an estimator. The weights of its functions follow."""
NUM_KNOTS: int
"""Number of weights of one function."""
NUM_WEIGHTS: int
"""Number of all weights of an estimator."""
NUM_RECENCIES: int
"""Number of functions for each slot and context length."""
NUM_SLOTS: int
"""Number of contexts that are weighed against each other for a node."""
GLOBAL_SLOT: int
"""The first slot of the global index's contexts."""
CORPUS_SLOT: int
"""The first slot of the corpora's contexts."""

class DraftBuffers:
    def __init__(
        self,
        offsets: NDArray[np.int32],
        tokens: NDArray[np.int32],
        parents: NDArray[np.int32],
        estimates: NDArray[np.float32],
        sources: NDArray[np.uint8],
        match_lens: NDArray[np.int32],
        scores: NDArray[np.float32],
        outcomes: NDArray[np.uint8],
        rooms: NDArray[np.int32],
    ) -> None: ...

class TreeBuffers:
    def __init__(self, memory: NDArray[np.int64], num_nodes: NDArray[np.int32]) -> None: ...

class CommonSubsequence:
    """The longest common subsequence of a text and another one that grows."""

    def __init__(self, text: NDArray[np.int32]) -> None: ...
    def append(self, tokens: NDArray[np.int32]) -> None:
        """Appends tokens to the growing text. Takes O(len(text) / 64) steps a token."""
    def __len__(self) -> int:
        """Its number of tokens."""

class Rows:
    """The open requests of a batch, looked up once for many steps."""

    def __len__(self) -> int: ...

class Engine:
    def __init__(
        self,
        *,
        num_token_ids: int,
        max_pattern: int,
        alpha: float,
        min_token_prob: float,
        chain: bool,
        own_text: bool,
        plain_rule: bool,
        max_draft_tokens: int,
        budget_bytes: int,
        conversation_bytes: int,
        prompt_tail: int,
        max_growing_tokens: int,
        max_siblings: int,
        num_threads: int,
        background: bool,
        tokenizer: bytes,
        weights: NDArray[np.float32],
        learning_rate: float,
    ) -> None: ...
    def open(
        self,
        request_id: str,
        prompt: NDArray[np.int32],
        namespace: str,
        max_length: int | None,
        group: str,
        is_shown: bool,
        prediction: NDArray[np.int32],
    ) -> None: ...
    def rows(self, request_ids: tuple[str, ...]) -> Rows: ...
    def learn(self, rows: Rows) -> None: ...
    def follow(
        self, rows: Rows, accepted: NDArray[np.int64], ends: NDArray[np.int64], padding: NDArray[np.int64] | None
    ) -> int: ...
    def draft_followed(
        self, rows: Rows, padding: NDArray[np.int64] | None, max_tokens: int, out: DraftBuffers, ends: NDArray[np.int64]
    ) -> int: ...
    def complete(self, request_id: str, output: NDArray[np.int32]) -> None: ...
    def extend(self, request_id: str, tokens: NDArray[np.int32]) -> None: ...
    def draft(
        self, request_ids: tuple[str, ...], max_tokens: NDArray[np.int32] | None
    ) -> tuple[
        NDArray[np.int32],
        NDArray[np.int32],
        NDArray[np.int32],
        NDArray[np.float32],
        NDArray[np.uint8],
        NDArray[np.int32],
        NDArray[np.float32],
    ]: ...
    def close(self, request_id: str, keep: bool, num_output_tokens: int | None) -> int: ...
    def num_tokens(self, request_id: str) -> int: ...
    def is_open(self, request_id: str) -> bool: ...
    def flush(self) -> None: ...
    def wait_indexed(self) -> None: ...
    def add(
        self, namespace: str, output_id: int, tokens: NDArray[np.int32], num_prompt_tail: int, time: int
    ) -> bool: ...
    def clear(self) -> None: ...
    def erase_namespace(self, namespace: str) -> bool: ...
    def erase_output(self, output_id: int) -> bool: ...
    def erase_request(self, namespace: str, request_id: str) -> int: ...
    def expire(self, namespace: str, before: int) -> int: ...
    def snapshot(
        self, namespace: str
    ) -> tuple[
        list[tuple[str, NDArray[np.uint8], NDArray[np.uint64], NDArray[np.int64], int]], NDArray[np.uint64], bool
    ]: ...
    def load_segments(
        self, namespace: str, blobs: Sequence[NDArray[np.uint8]], known: NDArray[np.uint64]
    ) -> NDArray[np.uint64]: ...
    def namespaces(self) -> list[tuple[str, int, int, int]]: ...
    def attach_corpus(self, path: str, namespaces: Sequence[str]) -> None: ...
    def detach_corpus(self, path: str) -> bool: ...
    def trials(
        self, request_id: str, truth: NDArray[np.int32]
    ) -> tuple[NDArray[np.int32], NDArray[np.float32], NDArray[np.float32], NDArray[np.uint8]]: ...
    def weights(self, namespace: str) -> NDArray[np.float32]: ...
    def stats(self) -> tuple[int, int, int, int, int, int, int, int, int, int, int, int]: ...
    def check_integrity(self) -> None: ...

def build_corpus(path: str, tokens: NDArray[np.int32], num_token_ids: int, tokenizer: bytes) -> None: ...
def request_hash(request_id: str) -> int: ...
def segment_info(path: str) -> tuple[str, int, int, int, int, str]: ...
def build_tree_arrays(
    offsets: NDArray[np.int32],
    tokens: NDArray[np.int32],
    parents: NDArray[np.int32],
    num_drafted: NDArray[np.int32] | None,
    width: int,
    out: TreeBuffers,
) -> None: ...

class Objective(enum.Enum):
    AHEAD = 0
    RUN = 1
    STEP = 2

class PlanningNumbers:
    """What is known of the step times and the draft model, to plan a step with. Shapes: b rows, w widths."""

    def __init__(
        self,
        *,
        widths: NDArray[np.int64],
        seconds: NDArray[np.float64],
        with_model: NDArray[np.float64] | None,
        rest: float,
        speedup: float,
        speedup_alone: float,
        exponent: float,
        exponent_united: float,
        promised: NDArray[np.float64] | None,
        fit: NDArray[np.bool_] | None,
        passes: int,
        must_pass: bool,
        cannot_pass: bool,
        trees: bool,
    ) -> None: ...

class StepPlanner:
    """Plans the passes of the draft model and the width of a step, as a DraftingStep does."""

    def __init__(self, *, suffix_only: Goodput, with_model: Goodput) -> None: ...
    def plan(
        self,
        offsets: NDArray[np.int32],
        parents: NDArray[np.int32],
        estimates: NDArray[np.float32],
        rooms: NDArray[np.int32],
        context: float,
        numbers: PlanningNumbers,
    ) -> tuple[bool, int, int, float, float, float, float, float]: ...
    def foreseen(
        self, columns: int, exponent: float, estimated: NDArray[np.float64], sizes: NDArray[np.int64]
    ) -> float: ...

class DraftingStep:
    """The host's part of a decode step, which a device runs in the order of a stream."""

    def __init__(
        self,
        *,
        engine: Engine,
        suffix_only: Goodput,
        with_model: Goodput,
        max_rows: int,
        max_width: int,
        max_drafted: int,
        trees: NDArray[np.int64],
        packed: NDArray[np.int32],
        num_nodes: NDArray[np.int32],
        first_sources: NDArray[np.uint8],
        outcomes: NDArray[np.uint8],
        ends: NDArray[np.int64],
        rooms: NDArray[np.int32],
        estimated: NDArray[np.float64],
        sizes: NDArray[np.int64],
    ) -> None: ...
    def prepare(
        self,
        *,
        written: list[tuple[Rows, NDArray[np.int64], NDArray[np.int64] | None, NDArray[np.int64] | None]],
        rows: Rows,
        padding: NDArray[np.int64] | None,
        max_tokens: int,
        width: int,
        unites: bool,
        suffixes: bool,
        numbers: PlanningNumbers,
    ) -> None: ...
    def run(self) -> None: ...
    def suffixes_followed(
        self, table: NDArray[np.int64], estimated: NDArray[np.float64], sizes: NDArray[np.int64]
    ) -> float: ...
    @property
    def address(self) -> tuple[int, int]: ...
    @property
    def next(self) -> tuple[bool, int, int, float, float, float, float, float]: ...
    @property
    def is_done(self) -> bool: ...
    @property
    def error(self) -> str: ...
    @property
    def num_lost(self) -> int: ...
    @property
    def context(self) -> int: ...
    @property
    def longest(self) -> int: ...
    @property
    def expected(self) -> float: ...
    @property
    def seconds(self) -> float: ...

class Goodput:
    """The state of the goodput controller, and its decisions. Shapes: b rows, n nodes, c = widths[-1] - 1 columns."""

    def __init__(
        self,
        *,
        objective: Objective,
        margin: float,
        patience: int,
        probe_share: float,
        knows_costs: bool,
        drafter_alpha: float,
        drafter_gamma: float,
        drafter_delta: float,
    ) -> None: ...
    def plan(
        self,
        offsets: NDArray[np.int32],
        parents: NDArray[np.int32],
        estimates: NDArray[np.float32],
        widths: NDArray[np.int64],
        context: float,
        rest: float,
        seconds: NDArray[np.float64],
        exponent: float,
        estimated: NDArray[np.float64],
        sizes: NDArray[np.int64],
        *,
        ahead: bool = False,
    ) -> tuple[int, float, float, int]:
        """Writes to estimated and sizes, [c]. `seconds`, [w], are those of a verification of each width. `ahead`: whether
        the objective is AHEAD, whatever it was made with.

        Returns the width, the expected number of tokens, the predicted seconds, and the index of the reason in
        PlanReason.
        """

    def probe_succeeded(self) -> None: ...
    def renew_probes(self) -> None: ...
    def width(self) -> int: ...
    def speedup(self) -> float | None: ...
    def num_probes(self) -> int: ...

class UnionRule(enum.Enum):
    MERGE = 0
    INTERLEAVE = 1
    BETTER = 2
    MODEL = 3
    MODEL_ONLY = 4

def unite_trees(
    offsets: NDArray[np.int32],
    tokens: NDArray[np.int32],
    parents: NDArray[np.int32],
    estimates: NDArray[np.float32],
    sources: NDArray[np.uint8],
    match_lens: NDArray[np.int32],
    model_parents: NDArray[np.int64],
    model_chosen: NDArray[np.int64],
    model_tokens: NDArray[np.int64],
    model_estimates: NDArray[np.float32],
    topk: int,
    wanted: NDArray[np.bool_],
    rooms: NDArray[np.int32],
    rule: UnionRule,
    trees: bool,
    max_nodes: int,
    min_estimate: float,
    factor: float,
) -> tuple[
    NDArray[np.int32],
    NDArray[np.int32],
    NDArray[np.int32],
    NDArray[np.float32],
    NDArray[np.uint8],
    NDArray[np.int32],
    NDArray[np.float32],
    NDArray[np.int32],
    NDArray[np.int32],
    NDArray[np.int32],
    NDArray[np.float32],
    NDArray[np.uint8],
    NDArray[np.uint8],
]: ...
def follow_paths(
    offsets: NDArray[np.int32],
    tokens: NDArray[np.int32],
    parents: NDArray[np.int32],
    estimates: NDArray[np.float32],
    texts: NDArray[np.int64],
    lengths: NDArray[np.int32],
) -> tuple[NDArray[np.int32], NDArray[np.float64]]: ...
def foresee_union(
    offsets: NDArray[np.int32],
    parents: NDArray[np.int32],
    estimates: NDArray[np.float32],
    promised: NDArray[np.float64],
    wanted: NDArray[np.bool_],
    rooms: NDArray[np.int32],
    passes: int,
    trees: bool,
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.float32]]: ...
