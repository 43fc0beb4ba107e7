"""Which rows of a step get the model drafter's draft, and what of both drafts is verified; loads numpy only."""

from agentspec.policy.config import HybridConfig, HybridRule, Tau, parse_tau
from agentspec.policy.costs import StepCosts
from agentspec.policy.hybrid import HybridBatch, HybridPolicy, ModelDraft
from agentspec.policy.payoff import FEATURES, PayoffPredictor, draft_features, row_features
from agentspec.policy.reading import PromptReading, PromptRule, ReadingRule, ZeroLengthReading, prompt_rule

__all__ = [
    "FEATURES",
    "HybridBatch",
    "HybridConfig",
    "HybridPolicy",
    "HybridRule",
    "ModelDraft",
    "PayoffPredictor",
    "PromptReading",
    "PromptRule",
    "ReadingRule",
    "StepCosts",
    "Tau",
    "ZeroLengthReading",
    "draft_features",
    "parse_tau",
    "prompt_rule",
    "row_features",
]
