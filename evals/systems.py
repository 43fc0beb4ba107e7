"""The servers that evals compare, and the drafters of the small model that two of them load."""

from __future__ import annotations

from dataclasses import dataclass

from agentspec.evals.text_to_sql import MODEL_FOLDER

STANDALONE_FOLDER = MODEL_FOLDER.with_name("tiny-sql-draft")
EAGLE3_FOLDER = MODEL_FOLDER.with_name("tiny-sql-eagle3")

# Trees of a model drafter: two branches a step over four steps, the best seven nodes and the root verified.
_TREE = (
    "--speculative-num-steps", "4", "--speculative-eagle-topk", "2", "--speculative-num-draft-tokens", "8",
)  # fmt: skip


@dataclass(frozen=True)
class System:
    """A server: what people call it, its --speculative-algorithm ("none" for plain decoding), further arguments."""

    label: str
    algorithm: str
    arguments: tuple[str, ...] = ()


SYSTEMS = {
    "none": System("SGLang", "none"),
    "ngram": System("SGLang + NGRAM", "NGRAM"),
    "standalone": System(
        "SGLang + STANDALONE", "STANDALONE", ("--speculative-draft-model-path", str(STANDALONE_FOLDER), *_TREE)
    ),
    "eagle3": System("SGLang + EAGLE-3", "EAGLE3", ("--speculative-draft-model-path", str(EAGLE3_FOLDER), *_TREE)),
    "agentspec": System("SGLang + agentspec", "AGENTSPEC"),
}
