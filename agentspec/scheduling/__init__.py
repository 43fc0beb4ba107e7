"""How much a decode step verifies: cost model, profile file and controllers; loads numpy only."""

from agentspec.scheduling.baselines.batch_table import (
    BatchTable,
    LengthCurve,
    accepted_lengths,
    table_of_profile,
    table_of_speeds,
)
from agentspec.scheduling.baselines.roofline import free_tokens
from agentspec.scheduling.baselines.smartspec import chain_tokens, tree_tokens
from agentspec.scheduling.config import ControlConfig, ControllerName, LengthModel, parse_table
from agentspec.scheduling.costs.cost_model import CostFit, MeasuredPoint, StepCost, fit_step_cost
from agentspec.scheduling.costs.online import OnlineCosts
from agentspec.scheduling.costs.profile import MeasuredRange, Profile, ProfileKey, StepTimes
from agentspec.scheduling.costs.serving import ServingCosts, ServingPoints, StepTotals, fit_serving_costs
from agentspec.scheduling.plan import Controller, Reason, StepPlan, StepState
from agentspec.scheduling.registry import CONTROLLERS, make_controller

__all__ = [
    "CONTROLLERS", "BatchTable", "ControlConfig", "Controller", "ControllerName", "CostFit", "LengthCurve",
    "LengthModel", "MeasuredPoint", "MeasuredRange", "OnlineCosts", "Profile", "ProfileKey", "Reason",
    "ServingCosts", "ServingPoints", "StepCost", "StepPlan", "StepState", "StepTimes", "StepTotals",
    "accepted_lengths", "chain_tokens", "fit_serving_costs", "fit_step_cost", "free_tokens", "make_controller",
    "parse_table", "table_of_profile", "table_of_speeds", "tree_tokens",
]  # fmt: skip
