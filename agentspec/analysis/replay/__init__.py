"""Teacher-forced replay: what a drafter would have drafted while recorded outputs were generated.

    read_trace(file) ─> calls ─> replay(calls, system) ─> accepted and drafted tokens, CPU time

No model runs. The recorded output replaces it, so all drafters are compared on the same tokens.
"""

from agentspec.analysis.replay.engine_system import SOURCES, EngineSystem, config_for
from agentspec.analysis.replay.teacher_forcing import (
    Draft,
    Measurement,
    System,
    accepted_nodes,
    replay,
    replay_settings,
    replay_together,
)
from agentspec.analysis.replay.tokenizer import Tokenizer, load_tokenizer
from agentspec.analysis.replay.traces import Call, SessionReader, Trace, check_session, read_trace

__all__ = [
    "SOURCES", "Call", "Draft", "EngineSystem", "Measurement", "SessionReader", "System", "Tokenizer", "Trace",
    "accepted_nodes", "check_session", "config_for", "load_tokenizer", "read_trace", "replay",
    "replay_settings", "replay_together",
]  # fmt: skip
