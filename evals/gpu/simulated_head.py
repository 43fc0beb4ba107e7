"""The simulated head of an EAGLE-3 run with random weights; it lives with the emulated device, which has one, too."""

from agentspec.integrations.emulated_device.models.simulated_head import (
    PUBLISHED,
    VARIABLE,
    SimulatedHead,
    acceptance_for,
    answer_key,
    comes_true,
    register,
    replayed_answer,
)

__all__ = [
    "PUBLISHED",
    "VARIABLE",
    "SimulatedHead",
    "acceptance_for",
    "answer_key",
    "comes_true",
    "register",
    "replayed_answer",
]
