"""Hybrid drafting: decides whether a step runs the draft model, which drafted tokens are verified, and when the draft
model is paused. It needs only numpy."""

from agentspec.scheduling.baselines.payoff import FEATURES, PayoffPredictor, draft_features, row_features
from agentspec.scheduling.hybrid.config import HybridConfig, HybridRule, Tau, UnionUse, parse_tau
from agentspec.scheduling.hybrid.costs import StepCosts
from agentspec.scheduling.hybrid.drafts import HybridBatch, ModelTrees, UnitedTrees
from agentspec.scheduling.hybrid.pausing import PauseRule, PauseRuleName, pause_rule
from agentspec.scheduling.hybrid.policy import Choice, HybridPolicy, single_precision

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
    "UnionUse",
    "UnitedTrees",
    "draft_features",
    "parse_tau",
    "pause_rule",
    "row_features",
    "single_precision",
]
