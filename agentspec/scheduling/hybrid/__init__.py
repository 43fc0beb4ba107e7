"""Hybrid drafting: decides whether a step runs the draft model, which drafted tokens are verified, and when the draft
model is paused. It needs only numpy."""

from agentspec.scheduling.hybrid.config import HybridConfig, HybridRule, Tau, UnionUse, parse_tau
from agentspec.scheduling.hybrid.costs import ModelCosts
from agentspec.scheduling.hybrid.drafts import HybridBatch, ModelTrees, UnitedTrees
from agentspec.scheduling.hybrid.pausing import PauseRule, PauseRuleName, counted, pause_rule
from agentspec.scheduling.hybrid.planner import ModelNumbers, NextStep, Speedup, StepPlanner, planning_numbers
from agentspec.scheduling.hybrid.policy import Choice, HybridPolicy, num_passes, single_precision

__all__ = [
    "Choice", "HybridBatch", "HybridConfig", "HybridPolicy", "HybridRule", "ModelCosts", "ModelNumbers",
    "ModelTrees", "NextStep", "PauseRule", "PauseRuleName", "Speedup", "StepPlanner", "Tau", "UnionUse",
    "UnitedTrees", "counted", "num_passes", "parse_tau", "pause_rule", "planning_numbers", "single_precision",
]  # fmt: skip
