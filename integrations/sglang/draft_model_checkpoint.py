"""Finds out which of SGLang's drafting algorithms a draft checkpoint is for, and whether it fits the target.

This is checked before a server starts, because SGLang notices a misfit only after it has loaded both models, or never.
A head for another vocabulary, or one whose maps are missing, drafts wrong tokens, and the server is only slower.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, cast

import numpy as np

from agentspec.errors import ConfigError
from agentspec.integrations.sglang.checkpoint_files import (
    find_folder,
    has_tensor,
    has_weights,
    read_config,
    read_tensor,
    text_config,
    token_ids,
)

Base = Literal["EAGLE", "EAGLE3", "STANDALONE"]
BASES: tuple[Base, ...] = ("EAGLE", "EAGLE3", "STANDALONE")
# SGLang's name for next-token layers of the target, with which its EAGLE can draft.
NEXT_TOKEN = "NEXTN"
AUTO = "auto"
BASE_FLAG = "--agentspec-base"
DRAFT_FLAG = "--speculative-draft-model-path"

# Heads whose algorithms agentspec does not support: they draft blocks at once, or use the target's KV cache.
_FOREIGN_HEAD = re.compile(r"DFlash|DSpark|Domino|Medusa|AssistantForCausalLM$", re.IGNORECASE)
_LANGUAGE_MODEL = re.compile(r"(ForCausalLM|LMHeadModel|ForConditionalGeneration)$")
# Keys of a config whose model predicts further tokens with extra layers. SGLang loads only these as a draft model.
_NEXT_TOKEN_LAYERS = ("num_nextn_predict_layers", "mtp_num_hidden_layers")


def drafter_base(draft_path: str, target_path: str, base: str = AUTO) -> Base:
    """The --speculative-algorithm with which SGLang loads the draft model, which is checked against the target.

    Args:
        draft_path: Folder or hub name of the draft model. Of a hub name, only files in the local cache are checked.
        target_path: The same for the target. If it is not on this machine, nothing is compared with it.
        base: EAGLE, EAGLE3 or STANDALONE, in upper or lower case; NEXTN, another name of EAGLE; or "auto" to read it
            from the checkpoint. A target with next-token layers may be its own draft model; its base is EAGLE.

    Raises:
        ConfigError: The base is unknown or does not match the checkpoint, the checkpoint cannot be read, or it does not
            fit the target: another vocabulary, another hidden size, or a reduced draft vocabulary without its map.
    """
    chosen = _parse_base(base)
    folder = find_folder(draft_path)
    if folder is None:
        return _out_of_reach(draft_path, chosen)
    config = read_config(folder)
    found = _recognise(config, _architecture(config, folder), folder, chosen)
    text = text_config(config)
    target_folder = find_folder(target_path)
    target = text_config(read_config(target_folder)) if target_folder is not None else {}
    _check_vocabulary(text, folder, target, target_path)
    if found == "STANDALONE":
        _check_tokenizers(folder, target_folder)
    else:
        _check_hidden_size(found, text, folder, target, target_path)
    if found == "EAGLE3":
        _check_maps(text, folder, is_fetched=folder != Path(draft_path).expanduser())
    return found


def has_next_token_layers(target_path: str) -> bool:
    """Whether the target's config names layers that predict further tokens; False if the config is not here."""
    folder = find_folder(target_path)
    text = text_config(read_config(folder)) if folder is not None else {}
    return any((_number(text, key) or 0) > 0 for key in _NEXT_TOKEN_LAYERS)


def _parse_base(base: str) -> Base | None:
    if isinstance(base, str) and base.lower() == AUTO:
        return None
    if isinstance(base, str) and base.upper() == NEXT_TOKEN:
        return "EAGLE"
    if not isinstance(base, str) or base.upper() not in BASES:
        raise ConfigError(
            f"the base must be {AUTO}, {', '.join((*BASES, NEXT_TOKEN))}, got {base!r}; set {BASE_FLAG} to one of them, or "
            "leave it out"
        )
    return cast(Base, base.upper())


def _out_of_reach(draft_path: str, chosen: Base | None) -> Base:
    path = Path(draft_path).expanduser()
    if path.is_absolute() and not path.exists():
        raise ConfigError(
            f"the draft model must be a folder or a hub name, got {draft_path}, which is not there; check {DRAFT_FLAG}"
        )
    if chosen is None:
        raise ConfigError(
            f"{draft_path} is no folder here and not in the Hugging Face cache, so that its kind cannot be read from "
            f"its config.json; pass {BASE_FLAG} {'|'.join(BASES)}, or give a folder in {DRAFT_FLAG}"
        )
    return chosen


def _architecture(config: Mapping[str, object], folder: Path) -> str:
    names = config.get("architectures")
    if not isinstance(names, Sequence) or not names or not isinstance(names[0], str):
        raise ConfigError(
            f"{folder}/config.json must name its architecture, got architectures={names!r}; complete it, such as "
            '["LlamaForCausalLMEagle3"] for an EAGLE-3 head'
        )
    return names[0]


def _recognise(config: Mapping[str, object], architecture: str, folder: Path, chosen: Base | None) -> Base:
    """The checkpoint's base. `chosen` decides if the architecture allows several."""
    if _FOREIGN_HEAD.search(architecture):
        raise ConfigError(
            f"a draft model must be an EAGLE or EAGLE-3 head, next-token layers or a language model, got {architecture} "
            f"in {folder}; serve it with its own --speculative-algorithm, or choose another draft model"
        )
    text = text_config(config)
    found: Base | None = None
    if "Eagle3" in architecture:
        found = "EAGLE3"
    elif any(mark in architecture for mark in ("Eagle", "NextN", "MTP")):
        found = "EAGLE"
    elif chosen != "EAGLE3" and config.get("draft_vocab_size") is not None:
        raise ConfigError(
            f"{folder} has a draft_vocab_size, as EAGLE-3 heads do, but its architecture is {architecture}, under which "
            'SGLang loads no such head; name it as SGLang does, such as "architectures": ["LlamaForCausalLMEagle3"]'
        )
    elif any((_number(text, key) or 0) > 0 for key in _NEXT_TOKEN_LAYERS):
        found = "EAGLE"
    elif chosen == "EAGLE" and _LANGUAGE_MODEL.search(architecture):
        # SGLang also supports models with next-token layers whose config does not name them.
        found = "EAGLE"
    elif _LANGUAGE_MODEL.search(architecture):
        found = "STANDALONE"
    if chosen is not None and found != chosen:
        is_for = f"for {found}" if found else "unknown"
        raise ConfigError(
            f"{BASE_FLAG} is {chosen}, but {folder} has the architecture {architecture}, which is {is_for}; leave the "
            f"flag out, or give a checkpoint for {chosen} in {DRAFT_FLAG}"
        )
    if found is None:
        raise ConfigError(
            f"cannot tell what drafts in {folder}: its architecture {architecture} is neither an EAGLE nor an EAGLE-3 "
            f"head, next-token layers or a language model; choose another draft model in {DRAFT_FLAG}"
        )
    return found


def _check_vocabulary(
    draft: Mapping[str, object], folder: Path, target: Mapping[str, object], target_path: str
) -> None:
    got, needed = _number(draft, "vocab_size"), _number(target, "vocab_size")
    if got is not None and needed is not None and got != needed:
        raise ConfigError(
            f"the draft model must share the target's vocabulary: {target_path} has vocab_size {needed}, {folder} has "
            f"{got}; choose a draft model made for this target"
        )


def _check_tokenizers(folder: Path, target_folder: Path | None) -> None:
    draft = token_ids(folder)
    target = token_ids(target_folder) if target_folder is not None else None
    if draft is None or target is None or draft == target:
        return
    differing = sorted(token for token in draft.keys() | target.keys() if draft.get(token) != target.get(token))
    first = differing[0]
    raise ConfigError(
        f"the draft model must share the target's vocabulary: {len(differing)} tokens have other ids in {folder} than in "
        f"{target_folder}, the first {first!r} with {draft.get(first, 'none')} and {target.get(first, 'none')}; choose a "
        "draft model with the target's tokenizer"
    )


def _check_hidden_size(
    base: Base, draft: Mapping[str, object], folder: Path, target: Mapping[str, object], target_path: str
) -> None:
    """Checks that a head reads the target's hidden states. Only an EAGLE-3 head may have another hidden size itself."""
    key = "target_hidden_size" if base == "EAGLE3" and _number(draft, "target_hidden_size") else "hidden_size"
    got, needed = _number(draft, key), _number(target, "hidden_size")
    if got is not None and needed is not None and got != needed:
        raise ConfigError(
            f"a head for {base} must read the target's hidden states: {target_path} has hidden_size {needed}, {folder} "
            f"has {key} {got}; choose a head made for this target"
        )


def _check_maps(draft: Mapping[str, object], folder: Path, *, is_fetched: bool) -> None:
    """Checks that the weights hold the map `d2t` if the head does not draft all tokens.

    The weights of a model that is fetched from a hub may not be on this machine yet; then nothing is checked.

    `d2t`, int64[draft_vocab_size], holds target id - draft id. SGLang reads only this map, and not its inverse `t2d`.
    """
    vocab_size = _number(draft, "vocab_size")
    draft_vocab_size = _number(draft, "draft_vocab_size")
    if draft_vocab_size is None or draft_vocab_size == vocab_size or (is_fetched and not has_weights(folder)):
        return
    if not has_tensor(folder, "d2t"):
        raise ConfigError(
            f"{folder} drafts {draft_vocab_size} of {vocab_size} tokens, so that its weights need the map d2t "
            "between both vocabularies, and there is no d2t in them: without it the draft ids would name wrong target "
            "tokens; export the head again with its map"
        )
    d2t = read_tensor(folder, "d2t")
    if d2t is None:
        return
    if d2t.shape != (draft_vocab_size,):
        raise ConfigError(
            f"d2t of {folder} must have one entry for each of {draft_vocab_size} drafted tokens, got the shape "
            f"{list(d2t.shape)}; export the head again with its map"
        )
    ids = d2t.astype(np.int64) + np.arange(draft_vocab_size)
    in_range = vocab_size is None or bool(((ids >= 0) & (ids < vocab_size)).all())
    if not in_range or len(np.unique(ids)) != draft_vocab_size:
        raise ConfigError(
            f"d2t of {folder} must hold target id - draft id, so that each drafted token is another of the target's "
            f"{vocab_size}, got ids from {ids.min()} to {ids.max()}, {len(np.unique(ids))} of them different; export "
            "the head again with offsets instead of ids"
        )


def _number(config: Mapping[str, object], key: str) -> int | None:
    value = config.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else None
