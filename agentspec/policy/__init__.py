"""Whether a step runs the draft model, what of both drafts is verified, and when the model is paused; numpy only."""

from agentspec.policy.config import HybridConfig, HybridRule, Tau, parse_tau
from agentspec.policy.costs import StepCosts
from agentspec.policy.drafts import HybridBatch, ModelTrees
from agentspec.policy.hybrid import Choice, HybridPolicy
from agentspec.policy.pausing import PauseRule, PauseRuleName, pause_rule
from agentspec.policy.payoff import FEATURES, PayoffPredictor, draft_features, row_features

__all__ = [
    "FEATURES",
    "Choice",
    "HybridBatch",
    "HybridConfig",
    "HybridPolicy",
    "HybridRule",
    "ModelTrees",
    "PauseRule",
    "PauseRuleName",
    "PayoffPredictor",
    "StepCosts",
    "Tau",
    "draft_features",
    "parse_tau",
    "pause_rule",
    "row_features",
]
