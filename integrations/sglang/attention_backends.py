"""Knows which attention backends verify token trees, and what else prevents trees.

A backend that does not read the tree mask verifies a tree as if it were a chain, and the server writes wrong text
without a warning. So trees are verified only by backends whose code was read and found to honour the mask. All other
backends, including new and unknown ones, get chains, which all backends verify alike.

    backend                                      trees   what its code does with the tree mask
    triton                                       yes     passes it to the extend kernel; kernels for chains run at topk 1 only
    flashinfer, models without MLA               yes     plans the paged prefill with it
    flashinfer, models with MLA                  no      builds it and drops it; draft models are limited to topk 1
    fa3, fa4                                     yes     two passes merged, the second by the mask; at topk 1 it is not read
    intel_amx                                    yes     passes it to its kernel, unless the step's own topk is 1
    trtllm_mha, trtllm_mla, cutedsl_mla          no      chains only
    tokenspeed_mla, flashmla, cutlass_mla        no      chains only
    dsa, nsa, qsa, dsv4, compressed              no      sparse attention of chains
    torch_native, flex_attention                 no      attend causally
    dual_chunk_flash_attn, hpc_ops               no      verify nothing
    minicpm_flashattn, minicpm_flashinfer        no      sparse attention, without masks
    llada2_cfg_flashinfer                        no      for diffusion models
    aiter, wave, ascend, intel_xpu               no      other devices, not read closely enough

What a model or a server has besides may prevent trees, or any verification:

- Layers with states verify chains only if they are lightning attention, short convolutions, or Mamba and KDA layers that
  flashinfer computes. Short convolutions take a tree for a chain without a warning; with the others SGLang does not start.
- Layers with a sliding window verify trees by fa3 and fa4 only, with pages of one token. triton places the window by a node's
  number in its row, which is its position in a chain alone. flashinfer reads the first tokens of the text in place of the
  last ones, so it verifies no drafts of such a model rightly.
- fa3 and fa4 merge two passes of a tree. They add attention sinks, as gpt-oss has, to both. With a KV cache in FP8, the
  kernel refuses the scales that they give to the second. Their graphs forget the chunks of Llama 4, even for a chain.
- An accepted branch is moved in the KV cache. SGLang cannot do that if devices share the cache of a text, or if MLA is kept
  in FP4.

`topk` is SGLang's `speculative_eagle_topk`. It must exceed 1 if trees are verified.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping

from agentspec.integrations.sglang import arguments
from agentspec.integrations.sglang.sglang_types import ModelConfig, ServerArgs

TREE_BACKENDS = frozenset({"triton", "flashinfer", "fa3", "fa4", "intel_amx"})
# Backends that take the width of a verify step from the step itself, if no graph fixes it. The others read it from the
# configuration once, and would split a narrower step into wrong rows.
_ANY_WIDTH_BACKENDS = frozenset({"triton", "flashinfer", "intel_amx"})
# Backends that verify a chain in one pass at topk 1. Above, they verify any tree in two, and lay out its mask anew by some
# twenty operations a step. In layers with a sliding window, they verify each node by itself, as deep as it lies in its tree.
_TWO_PASSES = frozenset({"fa3", "fa4"})
# Bytes that the graphs of one width keep for each captured token and each position of the context, for the slots of the
# prefix and the mask. Other backends keep tables with one entry per row, which are small in comparison.
_BYTES_PER_POSITION = {"triton": 8 + 1, "flashinfer": 4 + 1, "fa3": 0, "fa4": 0}
# Triton also keeps the results of parts of the context in float32, for each attention output of a token. By default these
# are 8 parts. With MLA there is one for each 32 positions or each processor of the device, at most; no device has more
# than 256. Deterministic results need parts of a fixed size.
_TRITON_PARTS, _TRITON_MLA_PARTS, _TRITON_MLA_POSITIONS, _TRITON_FIXED_POSITIONS = 8, 256, 32, 256
_FLOAT_BYTES = 4
# Backends for which SGLang allows trees if a page of the KV cache holds several tokens: without and with a draft model.
_PAGED_WITHOUT_DRAFT_MODEL = frozenset({"flashinfer"})
_PAGED_WITH_DRAFT_MODEL = frozenset({"flashinfer", "fa3", "triton"})
# Features of SGLang with which only chains are verified.
_CHAIN_FLAGS = ("enable_unified_memory", "enable_linear_replayssm_spec")


def backends_in_use(server_args: ServerArgs) -> list[str]:
    """The attention backends of prefill and of decode, which verifies, sorted; [] before SGLang has chosen them."""
    names = ("attention_backend", "decode_attention_backend", "prefill_attention_backend")
    found = [arguments.setting(server_args, name) for name in names]
    # The common backend is not in use if both of the others are named.
    used = found[1:] if found[1] and found[2] else found
    return sorted({str(name) for name in used if name})


def verify_obstacle(server_args: ServerArgs) -> str:
    """Why a server verifies no drafts rightly, and the remedy; empty if it does. `server_args`: as in tree_obstacle()."""
    if arguments.has_encoder(server_args):
        # Its tokens come first in a row of the token table. Only plain decoding (mem_cache/allocation.py) skips them.
        return "SGLang writes drafts over the tokens of this model's encoder; serve it without speculative decoding"
    if arguments.has_unverified_states(server_args):
        return "SGLang verifies no drafts in the state layers of this model; serve it without speculative decoding"
    mode = arguments.setting(server_args, "speculative_attention_mode") or "prefill"
    own, common = (arguments.setting(server_args, name) for name in (f"{mode}_attention_backend", "attention_backend"))
    name = str(own or common)
    if _serving(name) == "flashinfer" and arguments.has_window_layers(server_args):
        return (
            "flashinfer verifies with the first tokens of a text in place of the window's, in the layers of this model that "
            "have a sliding window; choose --attention-backend triton or fa3"
        )
    if _serving(name) in ("fa3", "fa4") and arguments.has_chunk_layers(server_args):
        return (
            f"{name} verifies without the chunks that layers of this model attend to; choose --attention-backend triton"
        )
    return ""


def tree_obstacle(server_args: ServerArgs, *, has_draft_model: bool) -> str:
    """Why a server cannot verify trees, and the remedy; empty if it can. `server_args`: resolved up to the attention
    backends and the page size. `has_draft_model`: whether the base is SGLang's EAGLE or STANDALONE instead of NGRAM."""
    backends = backends_in_use(server_args)
    remedy = "choose --attention-backend triton or fa3, or flashinfer for models without MLA"
    if not backends:
        return f"SGLang has chosen no attention backend; {remedy}"
    for name in backends:
        if _serving(name) not in TREE_BACKENDS:
            return f"the attention backend {name} verifies chains only; {remedy}"
        if name == "flashinfer" and arguments.uses_mla(server_args):
            return f"flashinfer verifies chains only where the model has MLA; {remedy}"
    if layers := arguments.states_of_chains(server_args):
        return f"SGLang verifies chains only where the model has {layers}; serve another model, or change that backend"
    page_size = int(arguments.setting(server_args, "page_size") or 1)
    paged = _PAGED_WITH_DRAFT_MODEL if has_draft_model else _PAGED_WITHOUT_DRAFT_MODEL
    if page_size > 1 and not paged.issuperset(backends):
        return (
            f"with --page-size {page_size} SGLang verifies trees only by {' or '.join(sorted(paged))}, got "
            f"{', '.join(backends)}; set --page-size 1, or choose another --attention-backend"
        )
    if not _TWO_PASSES.isdisjoint(map(_serving, backends)) and arguments.has_sinks(server_args):
        return f"in trees, {' and '.join(backends)} would count the attention sinks of this model twice; verify chains"
    if not (page_size == 1 and _TWO_PASSES.issuperset(map(_serving, backends))) and arguments.has_window_layers(
        server_args
    ):
        return (
            "layers with a sliding window verify trees only by fa3 or fa4 with pages of one token; choose "
            "--attention-backend fa3 and --page-size 1"
        )
    cache_dtype = str(arguments.setting(server_args, "kv_cache_dtype"))
    if cache_dtype.startswith("fp8") and not _TWO_PASSES.isdisjoint(map(_serving, backends)):
        return (
            f"with --kv-cache-dtype {cache_dtype}, {' and '.join(backends)} cannot hand the scales of a checkpoint to the "
            "second pass of a tree; choose --attention-backend triton or flashinfer, or drop it"
        )
    if "fp4" in cache_dtype and arguments.uses_mla(server_args):
        return (
            "SGLang moves no scales with the tokens of a tree where the model has MLA; choose another --kv-cache-dtype"
        )
    if int(arguments.setting(server_args, "dcp_size") or 1) > 1:
        return "SGLang moves no tokens of a tree between devices that share the KV cache of a text; drop --dcp-size"
    for name in _CHAIN_FLAGS:
        if arguments.setting(server_args, name):
            flag = "--" + name.replace("_", "-")
            return f"{flag} verifies chains only; drop it"
    return ""


def verifies_trees(server_args: ServerArgs) -> bool:
    """Whether the server of a resolved record verifies trees: SGLang's topk exceeds 1, and there is no obstacle."""
    topk = int(arguments.setting(server_args, "speculative_eagle_topk") or 1)
    return topk > 1 and not tree_obstacle(server_args, has_draft_model=arguments.has_draft_model(server_args))


def takes_any_width(server_args: ServerArgs) -> bool:
    """Whether verify steps without captured graphs may differ in width."""
    backends = backends_in_use(server_args)
    return bool(backends) and all(_serving(name) in _ANY_WIDTH_BACKENDS for name in backends)


def chains_cost_less(server_args: ServerArgs) -> bool:
    """Whether steps in which every row is a chain should be verified at topk 1."""
    backends = backends_in_use(server_args)
    return bool(backends) and all(_serving(name) in _TWO_PASSES for name in backends)


def graph_bytes_per_token(server_args: ServerArgs, config: ModelConfig) -> int:
    """Bytes of the attention backends' buffers for the graphs of one width, for each token of the largest step.

    For unknown backends this is an upper estimate.

    Args:
        server_args: Resolved up to the attention backends.
        config: The target's.
    """
    names = [_serving(name) for name in backends_in_use(server_args)]
    unknown = max(_BYTES_PER_POSITION.values())
    by_position = max((_BYTES_PER_POSITION.get(name, unknown) for name in names), default=unknown)
    return by_position * config.context_len + (_triton_partial_bytes(server_args, config) if "triton" in names else 0)


def _triton_partial_bytes(server_args: ServerArgs, config: ModelConfig) -> int:
    """Bytes of the results of all parts of the context, for a token."""
    parts = int(arguments.setting(server_args, "triton_attention_num_kv_splits") or _TRITON_PARTS)
    # Without MLA, a token's attention output is about as large as its hidden state.
    outputs = config.hidden_size
    if arguments.uses_mla(server_args):
        parts = max(parts, min(_TRITON_MLA_PARTS, _power_of_two(-(-config.context_len // _TRITON_MLA_POSITIONS))))
        outputs = config.num_attention_heads * config.kv_lora_rank
    positions = arguments.setting(server_args, "triton_attention_split_tile_size")
    if arguments.setting(server_args, "enable_deterministic_inference"):
        positions = _TRITON_FIXED_POSITIONS
    if positions:
        parts = -(-config.context_len // int(positions))
    return _FLOAT_BYTES * parts * outputs // int(arguments.setting(server_args, "tp_size") or 1)


def _power_of_two(least: int) -> int:
    return 1 << (least - 1).bit_length()


def _serving(name: str) -> str:
    """The name of the implementation behind a backend's name, which a plugin may have replaced."""
    if name in TREE_BACKENDS:
        return name
    registry: Mapping[str, object] = importlib.import_module(
        "sglang.srt.layers.attention.attention_registry"
    ).ATTENTION_BACKENDS
    return next((known for known in TREE_BACKENDS if name in registry and registry[name] is registry.get(known)), name)
