"""SGLang's record of server arguments: how every supported release reads it, and what agentspec notes on it.

Releases are told apart by probing, never by version. A record that is not published yet is a plain dataclass in one
release, and a frozen msgspec struct with a `__dict__` in another.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import sys
from dataclasses import dataclass
from typing import Any

from agentspec.integrations.sglang.sglang_types import ModelConfig, ServerArgs

ALGORITHM = "AGENTSPEC"
# The built-in algorithm whose schedule, memory and graph handling agentspec takes over where there is no draft model.
BASE_ALGORITHM = "NGRAM"
# The same where there is a draft model.
DRAFTER_ALGORITHMS = ("EAGLE", "EAGLE3", "STANDALONE")
# Attribute of a ServerArgs record that carries the resolved settings to the scheduler processes. The name must begin
# with an underscore: only such attributes may be set on the frozen record, and they survive pickling.
SETTINGS_ATTRIBUTE = "_agentspec_settings"
# A further one for what bounds the memory of captured graphs.
LIMITS_ATTRIBUTE = "_agentspec_graph_limits"
# What a model's config.json calls layers that do not attend to all of the text.
_WINDOW_LAYERS = frozenset({"sliding_attention", "chunked_attention", "swa"})
# How the names of the configurations begin of models whose short convolutions take a row for a chain.
_SHORT_CONVOLUTIONS = ("Lfm2", "Inkling")
# The configurations of models whose layers know prefills and decoding only: their verification asserts, fails, or keeps the
# states of drafts.
_UNVERIFIED_STATES = frozenset({"MambaConfig", "FalconMambaConfig", "ZayaConfig", "JetNemotronConfig", "JetVLMConfig"})


def setting(server_args: ServerArgs, name: str, default: Any = None) -> Any:
    """The value of a field as far as it is resolved, or `default` if this release has no such field."""
    # A process that holds a record has loaded the module that its release needs to read it.
    overrides = sys.modules.get("sglang.srt.arg_groups.overrides")
    view = getattr(overrides, "resolving_view", None) or getattr(overrides, "resolved_view", None)
    return getattr(server_args if view is None else view(server_args), name, default)


def record_of(server_args: ServerArgs) -> ServerArgs:
    """The record itself. One release passes a stand-in for it to a registered algorithm."""
    overrides = sys.modules.get("sglang.srt.arg_groups.overrides")
    try:
        record: ServerArgs = overrides.record_of(object.__getattribute__(server_args, "_cfg"))  # type: ignore[union-attr]
        return record
    except AttributeError:
        return server_args


def decide(server_args: ServerArgs, **fields: object) -> None:
    """Sets fields of a record while SGLang resolves it, like SGLang's own handlers of arguments."""
    declare = getattr(sys.modules.get("sglang.srt.arg_groups.overrides"), "declare_resolution", None)
    if declare is not None:
        declare(server_args, "agentspec", **fields)
        return
    for name, value in fields.items():
        setattr(server_args, name, value)


def mark(server_args: ServerArgs, settings: dict[str, object]) -> None:
    """Notes on the record that the server runs agentspec, with its resolved settings."""
    try:
        setattr(server_args, SETTINGS_ATTRIBUTE, settings)
    except AttributeError:
        object.__setattr__(server_args, SETTINGS_ATTRIBUTE, settings)


def marked_settings(server_args: ServerArgs) -> dict[str, Any] | None:
    """The settings that `mark` noted, or None."""
    found = getattr(server_args, SETTINGS_ATTRIBUTE, None)
    return found if isinstance(found, dict) else None


@dataclass(frozen=True, slots=True)
class GraphLimits:
    """The limits for the memory of captured graphs. The launcher sets them, so that all ranks agree."""

    tokens: int
    """The most tokens of a captured verify step, that is, rows times width."""
    attention_bytes: int
    """Bytes that attention backends keep for each of these tokens, for the graphs of each width."""
    spare_gb: float
    """GB of each device that neither weights nor KV cache take; 0 if the device's memory is unknown."""
    widest: int = 0
    """The most tokens of a row. Graphs of it exist for batches of any size that the tokens allow."""


def note_graph_limits(server_args: ServerArgs, limits: GraphLimits) -> None:
    """Notes the limits on the record for the scheduler processes."""
    setattr(server_args, LIMITS_ATTRIBUTE, dataclasses.asdict(limits))


def graph_limits(server_args: ServerArgs) -> GraphLimits | None:
    """The limits that `note_graph_limits` noted, or None."""
    noted = getattr(server_args, LIMITS_ATTRIBUTE, None)
    return GraphLimits(**noted) if isinstance(noted, dict) else None


def captures_graphs(server_args: ServerArgs) -> bool:
    """Whether a server will capture graphs of its verify steps: it runs on a GPU, and graphs are not disabled.

    This is known once SGLang has resolved the device and its configuration of graphs. An emulated GPU replaces this
    function.
    """
    if setting(server_args, "device") in (None, "cpu"):
        return False
    decode = getattr(setting(server_args, "cuda_graph_config"), "decode", None)
    is_disabled = setting(server_args, "disable_cuda_graph")
    return not is_disabled and getattr(decode, "backend", "full") != "disabled"


def spare_memory(server_args: ServerArgs) -> float:
    """GB of each device that SGLang leaves for everything but weights and KV cache.

    It is 0 if that is unknown, and on a CPU, whose memory is not reserved for this server.
    """
    if setting(server_args, "device") == "cpu":
        return 0.0
    utils = importlib.import_module("sglang.srt.utils.common")
    megabytes = utils.get_device_memory_capacity(setting(server_args, "device"))
    fraction = setting(server_args, "mem_fraction_static")
    return float(megabytes) / 1024 * (1.0 - float(fraction)) if megabytes and fraction else 0.0


def enables_adapters(server_args: ServerArgs) -> bool:
    """Whether requests of a server may ask for adapters (LoRA)."""
    return bool(setting(server_args, "enable_lora") or setting(server_args, "lora_paths"))


def target_config(server_args: ServerArgs) -> ModelConfig:
    """SGLang's configuration of the target model. It reads the target's config.json."""
    base = sys.modules.get("sglang.srt.arg_groups.model_override_base")
    find = getattr(base, "model_config_of", None)
    config: ModelConfig = server_args.get_model_config() if find is None else find(server_args)
    return config


def keeps_token_states(server_args: ServerArgs) -> bool:
    """Whether the target has layers (Mamba, linear attention) that keep a state for every token of a verify step."""
    return has_token_states(target_config(server_args))


def has_token_states(model_config: ModelConfig) -> bool:
    hybrid = importlib.import_module("sglang.srt.configs.hybrid_arch")
    return hybrid.mambaish_config(model_config) is not None


def wants_agentspec(server_args: ServerArgs) -> bool:
    """Whether a server runs agentspec, in any process that holds its record.

    Either `mark` noted this, or the record was built with the algorithm's name, as by `sglang.Engine(...)`.
    """
    if marked_settings(server_args) is not None:
        return True
    raw = getattr(server_args, "_raw_input", None) or {}
    name = raw.get("speculative_algorithm") or getattr(server_args, "speculative_algorithm", None)
    return isinstance(name, str) and name.upper() == ALGORITHM


def verify_width(server_args: ServerArgs) -> int:
    """The most tokens of a row of a verify step, its root included."""
    with contextlib.suppress(ImportError, AttributeError):
        spec = importlib.import_module("sglang.srt.runtime_context").get_spec()
        return int(spec.speculative_num_draft_tokens)
    return int(server_args.speculative_num_draft_tokens)


def has_draft_model(server_args: ServerArgs) -> bool:
    """Whether the base algorithm of a resolved record has a draft model."""
    return str(setting(server_args, "speculative_algorithm")) in DRAFTER_ALGORITHMS


def uses_mla(server_args: ServerArgs) -> bool:
    """Whether SGLang runs the target with multi-head latent attention (MLA). It reads the target's config.json."""
    find = getattr(sys.modules.get("sglang.srt.arg_groups.overrides"), "use_mla_backend", None)
    return bool(server_args.use_mla_backend() if find is None else find(server_args))


def has_unverified_states(server_args: ServerArgs) -> bool:
    """Whether the target has layers that SGLang cannot verify: Mamba 1, ZAYA1 and Jet-Nemotron. It reads the target's
    config.json."""
    hybrid = importlib.import_module("sglang.srt.configs.hybrid_arch")
    return type(hybrid.mambaish_config(target_config(server_args))).__name__ in _UNVERIFIED_STATES


def states_of_chains(server_args: ServerArgs) -> str:
    """The target's layers whose states follow chains alone, in words; empty if there are none. It reads the target's
    config.json."""
    hybrid, config = importlib.import_module("sglang.srt.configs.hybrid_arch"), target_config(server_args)
    if hybrid.hybrid_lightning_config(config) is not None:
        # SGLang does not start with trees.
        return "lightning attention"
    if (mamba := hybrid.mamba2_config(config)) is not None:
        if type(mamba).__name__.startswith(_SHORT_CONVOLUTIONS):
            return "short convolutions"
        if setting(server_args, "mamba_backend") == "flashinfer":
            return "Mamba layers with --mamba-backend flashinfer"
    names = ("linear_attn_verify_backend", "linear_attn_decode_backend", "linear_attn_backend")
    # SGLang takes the first that is named.
    verifying = next((value for name in names if (value := setting(server_args, name))), None)
    find_kda = getattr(hybrid, "hybrid_kda_config", None) or hybrid.kimi_linear_config
    return "KDA layers verified by flashinfer" if verifying == "flashinfer" and find_kda(config) is not None else ""


def has_encoder(server_args: ServerArgs) -> bool:
    """Whether the target decodes from an encoder's tokens, as Whisper and Llama 3.2 Vision do. It reads the target's
    config.json."""
    return bool(target_config(server_args).is_encoder_decoder)


def has_window_layers(server_args: ServerArgs) -> bool:
    """Whether some of the target's layers attend to a window or a chunk of the text only. It reads the target's
    config.json."""
    config = target_config(server_args)
    kinds = getattr(config.hf_text_config, "layer_types", None) or ()
    module = importlib.import_module("sglang.srt.configs.model_config")
    return not _WINDOW_LAYERS.isdisjoint(kinds) or bool(
        module.is_hybrid_swa_model(config.hf_config.architectures, config.hf_text_config)
    )


def has_sinks(server_args: ServerArgs) -> bool:
    """Whether the target's layers add a learnt weight to each softmax, as gpt-oss's. It reads the target's config.json."""
    return bool(target_config(server_args).has_attention_sinks)


def has_chunk_layers(server_args: ServerArgs) -> bool:
    """Whether some of the target's layers attend to a chunk of the text only, as Llama 4's. It reads the target's
    config.json."""
    module = importlib.import_module("sglang.srt.configs.model_config")
    return bool(module.is_local_attention_model(target_config(server_args).hf_config.architectures))


def tokenizer_folder(server_args: ServerArgs) -> str:
    """The folder of the served tokenizer's files, or its name if it is not local."""
    return str(setting(server_args, "tokenizer_path") or setting(server_args, "model_path"))


def served_model_name(server_args: ServerArgs) -> str:
    """The name under which clients know the model; its path if it was given none."""
    return str(setting(server_args, "served_model_name") or setting(server_args, "model_path"))


def metrics_enabled(server_args: ServerArgs) -> bool:
    return bool(getattr(server_args, "enable_metrics", False))


def traces_requests(server_args: ServerArgs) -> bool:
    return bool(getattr(server_args, "enable_trace", False))


def admin_key(server_args: ServerArgs) -> str:
    """The value of SGLang's --admin-api-key; empty if it was not given."""
    with contextlib.suppress(ImportError, AttributeError):
        found = importlib.import_module("sglang.srt.runtime_context").get_serving().admin_api_key
        return str(found or "")
    return str(setting(server_args, "admin_api_key") or "")
