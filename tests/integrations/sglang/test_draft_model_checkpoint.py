"""Draft checkpoints are recognised, and those that do not fit the target are refused with a remedy.

The target of the tiny folders has 12 tokens, hidden size 8 and 10 layers. Its EAGLE-3 head drafts tokens 2, 5 and 9:

    draft id   0  1  2
    target id  2  5  9
    d2t        2  4  7     (target id - draft id)
"""

from __future__ import annotations

import json
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from agentspec.errors import ConfigError
from agentspec.evals.systems import EAGLE3_FOLDER, STANDALONE_FOLDER
from agentspec.evals.text_to_sql import MODEL_FOLDER
from agentspec.integrations.sglang.draft_model_checkpoint import drafter_base

Maps = dict[str, np.ndarray[Any, Any]]
D2T = np.array([2, 4, 7])
T2D = np.isin(np.arange(12), [2, 5, 9])


def write_model(folder: Path, architecture: str, **config: Any) -> Path:
    folder.mkdir(exist_ok=True)
    fields = {"vocab_size": 12, "hidden_size": 8, "num_hidden_layers": 10, **config}
    (folder / "config.json").write_text(json.dumps({"architectures": [architecture], **fields}))
    return folder


def write_tokenizer(folder: Path, vocabulary: Any, *added: tuple[str, int]) -> None:
    tokens = [{"content": content, "id": number} for content, number in added]
    (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocabulary}, "added_tokens": tokens}))


def write_eagle3(folder: Path, maps: Maps, **config: Any) -> Path:
    write_model(folder, "LlamaForCausalLMEagle3", **{"draft_vocab_size": 3, **config})
    save_file({"lm_head.weight": np.zeros((3, 8), np.float16), **maps}, folder / "model.safetensors")
    return folder


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return write_model(tmp_path / "target", "LlamaForCausalLM")


def inspect(draft: Path, target: Path, base: str = "auto") -> str:
    return drafter_base(str(draft), str(target), base)


def refused(draft: Path | str, target: Path, base: str = "auto") -> str:
    with pytest.raises(ConfigError) as caught:
        drafter_base(str(draft), str(target), base)
    return str(caught.value)


def test_the_shipped_drafters_fit_the_shipped_model() -> None:
    assert inspect(EAGLE3_FOLDER, MODEL_FOLDER) == "EAGLE3"
    assert inspect(STANDALONE_FOLDER, MODEL_FOLDER) == "STANDALONE"


@pytest.mark.parametrize(
    ("architecture", "config", "base"),
    [
        ("LlamaForCausalLMEagle", {}, "EAGLE"),
        ("Qwen2ForCausalLMEagle", {}, "EAGLE"),
        ("DeepseekV3ForCausalLMNextN", {}, "EAGLE"),
        ("MiMoMTP", {}, "EAGLE"),
        ("DeepseekV3ForCausalLM", {"num_nextn_predict_layers": 1}, "EAGLE"),
        ("LlamaForCausalLMEagle3", {}, "EAGLE3"),
        ("Eagle3DeepseekV2ForCausalLM", {}, "EAGLE3"),
        # An EAGLE-3 head may be of another width if it reads the target's.
        ("LlamaForCausalLMEagle3", {"hidden_size": 6, "target_hidden_size": 8}, "EAGLE3"),
        # The whole vocabulary needs no maps.
        ("LlamaForCausalLMEagle3", {"draft_vocab_size": 12}, "EAGLE3"),
        ("LlamaForCausalLM", {"hidden_size": 4}, "STANDALONE"),
        ("Qwen3ForCausalLM", {"num_nextn_predict_layers": 0}, "STANDALONE"),
    ],
)
def test_the_base_follows_from_architecture_and_config(
    tmp_path: Path, target: Path, architecture: str, config: dict[str, Any], base: str
) -> None:
    draft = write_model(tmp_path / "draft", architecture, **config)
    assert inspect(draft, target) == inspect(draft, target, base.lower()) == base


def test_next_token_layers_that_the_config_does_not_mention(tmp_path: Path, target: Path) -> None:
    draft = write_model(tmp_path / "draft", "Qwen3NextForCausalLM")
    assert inspect(draft, target, "EAGLE") == "EAGLE"


HEAD, HEAD3, LLAMA = "LlamaForCausalLMEagle", "LlamaForCausalLMEagle3", "LlamaForCausalLM"


@pytest.mark.parametrize(
    ("architecture", "config", "base", "said"),
    [
        (HEAD3, {}, "EAGLE", "is for EAGLE3"),
        (HEAD3, {}, "STANDALONE", "is for EAGLE3"),
        (HEAD, {}, "EAGLE3", "is for EAGLE;"),
        (LLAMA, {}, "EAGLE3", "is for STANDALONE"),
        ("BertModel", {}, "STANDALONE", "is unknown"),
        ("BertModel", {}, "auto", "BertModel is neither"),
        ("DFlashDraftModel", {}, "auto", "got DFlashDraftModel"),
        ("Qwen3ForCausalLM", {}, "NGRAM", "must be auto, EAGLE, EAGLE3, STANDALONE, NEXTN, got 'NGRAM'"),
        # An EAGLE-3 head under a plain architecture is told how to be named.
        (LLAMA, {"draft_vocab_size": 3}, "auto", HEAD3),
        *((name, {"vocab_size": 11}, "auto", "has vocab_size 12") for name in (LLAMA, HEAD, HEAD3)),
        (HEAD, {"hidden_size": 6}, "auto", "hidden_size 6"),
        (HEAD, {"hidden_size": 6, "target_hidden_size": 8}, "auto", "hidden_size 6"),
        (HEAD3, {"hidden_size": 6}, "auto", "hidden_size 6"),
        (HEAD3, {"target_hidden_size": 6}, "auto", "target_hidden_size 6"),
    ],
)
def test_a_checkpoint_that_cannot_draft_for_the_target(
    tmp_path: Path, target: Path, architecture: str, config: dict[str, Any], base: str, said: str
) -> None:
    assert said in refused(write_model(tmp_path / "draft", architecture, **config), target, base)


def test_folders_that_are_no_models(tmp_path: Path, target: Path) -> None:
    assert "is not there" in refused(tmp_path / "nowhere", target)
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "there is no config.json in it" in refused(empty, target)
    (empty / "config.json").write_text("[1]")
    assert "must hold one JSON object, got list" in refused(empty, target)
    (empty / "config.json").write_text("{")
    assert "cannot read" in refused(empty, target)
    (empty / "config.json").write_text('{"vocab_size": 12}')
    assert "architectures=None" in refused(empty, target)


def test_the_same_number_of_tokens_with_other_ids(tmp_path: Path, target: Path) -> None:
    draft = write_model(tmp_path / "draft", "LlamaForCausalLM")
    write_tokenizer(target, {"a": 0, "b": 1}, ("<end>", 2))
    write_tokenizer(draft, [["a", -1.0], ["b", -2.0]], ("<end>", 2))
    assert inspect(draft, target) == "STANDALONE"
    write_tokenizer(draft, {"b": 0, "a": 1}, ("<end>", 2))
    said = refused(draft, target)
    assert "2 tokens have other ids" in said and "the first 'a' with 1 and 0" in said


def test_a_target_whose_language_model_is_a_section(tmp_path: Path, target: Path) -> None:
    config = json.loads((target / "config.json").read_text())
    wrapped = {"architectures": ["LlavaForConditionalGeneration"], "text_config": config}
    (target / "config.json").write_text(json.dumps(wrapped))
    assert "has 11" in refused(write_model(tmp_path / "draft", "LlamaForCausalLM", vocab_size=11), target)


@pytest.mark.parametrize("maps", [{"d2t": D2T, "t2d": T2D}, {"d2t": D2T}, {"model.d2t": D2T.astype(np.int32)}])
def test_a_reduced_vocabulary_with_its_maps(tmp_path: Path, target: Path, maps: Maps) -> None:
    assert inspect(write_eagle3(tmp_path / "draft", maps), target) == "EAGLE3"


@pytest.mark.parametrize(
    ("maps", "said"),
    [
        ({}, "drafts 3 of 12 tokens"),
        ({"t2d": T2D}, "there is no d2t"),
        ({"d2t": D2T[:2]}, "got the shape [2]"),
        ({"d2t": np.array([2, 5, 10])}, "got ids from 2 to 12"),
        ({"d2t": np.array([2, 1, 7])}, "2 of them different"),
    ],
)
def test_a_reduced_vocabulary_whose_maps_are_missing_or_wrong(
    tmp_path: Path, target: Path, maps: Maps, said: str
) -> None:
    assert said in refused(write_eagle3(tmp_path / "draft", maps), target)


def test_weights_that_torch_saved_are_read_without_executing_them(tmp_path: Path, target: Path) -> None:
    draft = write_eagle3(tmp_path / "draft", {})
    (draft / "model.safetensors").unlink()

    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (tmp_path / "sprung",)

    for name, expected in (("d2t", None), ("norm", "there is no d2t")):
        with zipfile.ZipFile(draft / "pytorch_model.bin", "w") as archive:
            archive.writestr("archive/data.pkl", pickle.dumps({name: Trap()}, protocol=2))
        assert inspect(draft, target) if expected is None else expected in refused(draft, target)
    assert not (tmp_path / "sprung").exists()


def test_damaged_weights(tmp_path: Path, target: Path) -> None:
    draft = write_eagle3(tmp_path / "draft", {"d2t": D2T})
    for content in (b"", b"\xff" * 64, (2).to_bytes(8, "little") + b"[]"):
        (draft / "model.safetensors").write_bytes(content)
        assert "must be a safetensors file" in refused(draft, target)
    (draft / "model.safetensors").unlink()
    (draft / "pytorch_model.bin").write_bytes(b"no zip")
    assert "that torch.save wrote" in refused(draft, target)


def test_a_hub_name_needs_the_base_unless_it_is_in_the_cache(
    tmp_path: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "hub"
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))
    name = "someone/some-head"
    assert "pass --agentspec-base EAGLE|EAGLE3|STANDALONE" in refused(name, target)
    assert drafter_base(name, str(target), "EAGLE3") == "EAGLE3"
    repository = cache / "models--someone--some-head"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("0123")
    (repository / "snapshots").mkdir()
    # The weights, which contain the maps, are not downloaded yet.
    write_model(repository / "snapshots" / "0123", "LlamaForCausalLMEagle3", draft_vocab_size=3)
    assert drafter_base(name, str(target)) == "EAGLE3"
    write_model(repository / "snapshots" / "0123", "LlamaForCausalLMEagle3", vocab_size=11)
    assert "has 11" in refused(name, target)


def test_a_target_that_is_not_here_is_not_compared_with(tmp_path: Path) -> None:
    draft = write_model(tmp_path / "draft", "LlamaForCausalLMEagle", vocab_size=11)
    assert drafter_base(str(draft), "someone/some-target") == "EAGLE"
