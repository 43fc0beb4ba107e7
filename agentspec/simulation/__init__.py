"""Simulates speculative serving on an event clock, to compare controllers under load without a model (SmartSpec,
section 7.2).

    arrivals ─┐
              ├─> requests ─> server: admit, prefill, plan, verify ─> log ─> metrics
    acceptance┘                     seconds of a profile

The controllers are the real ones, and the server schedules like SGLang. Only forward passes are replaced. Their seconds
come from a profile, and their accepted tokens from a replay of recorded outputs or from a given rate.
"""

from agentspec.simulation.acceptance import Acceptance
from agentspec.simulation.arrivals import FORMS as arrival_forms
from agentspec.simulation.arrivals import Arrivals, parse_arrivals
from agentspec.simulation.metrics import Latencies, Metrics, RunLog, StepFigures, measure
from agentspec.simulation.profiles import BUILT_IN as BUILT_IN_PROFILES
from agentspec.simulation.profiles import find_profile
from agentspec.simulation.rates import FORMS as rate_forms
from agentspec.simulation.rates import acceptance_at_rate, is_rate
from agentspec.simulation.recording import record_acceptance
from agentspec.simulation.requests import Requests, draw_requests, ordered_requests
from agentspec.simulation.server import ServerConfig, simulate

__all__ = [
    "BUILT_IN_PROFILES", "Acceptance", "Arrivals", "Latencies", "Metrics", "Requests", "RunLog", "ServerConfig",
    "StepFigures", "acceptance_at_rate", "arrival_forms", "draw_requests", "find_profile", "is_rate", "measure",
    "ordered_requests", "parse_arrivals", "rate_forms", "record_acceptance", "simulate",
]  # fmt: skip
