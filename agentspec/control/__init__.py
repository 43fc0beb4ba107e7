"""How much a decode step verifies: cost model, profile file and controllers; loads numpy only."""

from agentspec.control.batch_table import BatchTable, LengthCurve, accepted_lengths, table_of_profile, table_of_speeds
from agentspec.control.config import ControlConfig, ControllerName, LengthModel
from agentspec.control.costs import CostFit, MeasuredPoint, StepCost, fit_step_cost
from agentspec.control.factory import CONTROLLERS, make_controller
from agentspec.control.online import OnlineCosts
from agentspec.control.plan import Controller, Reason, StepPlan, StepState
from agentspec.control.profile import MeasuredRange, Profile, ProfileKey
from agentspec.control.roofline import free_tokens
from agentspec.control.serving import ServingCosts, ServingPoints, StepTotals, fit_serving_costs
from agentspec.control.smartspec import chain_tokens, tree_tokens
from agentspec.control.step_times import StepTimes

__all__ = [
    "CONTROLLERS",
    "BatchTable",
    "ControlConfig",
    "Controller",
    "ControllerName",
    "CostFit",
    "LengthCurve",
    "LengthModel",
    "MeasuredPoint",
    "MeasuredRange",
    "OnlineCosts",
    "Profile",
    "ProfileKey",
    "Reason",
    "ServingCosts",
    "ServingPoints",
    "StepCost",
    "StepPlan",
    "StepState",
    "StepTimes",
    "StepTotals",
    "accepted_lengths",
    "chain_tokens",
    "fit_serving_costs",
    "fit_step_cost",
    "free_tokens",
    "make_controller",
    "table_of_profile",
    "table_of_speeds",
    "tree_tokens",
]
