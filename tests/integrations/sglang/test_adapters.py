"""What an adapter's answers taught is known when it is loaded again, and to no other adapter."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from agentspec.integrations import sglang_cpu
from agentspec.integrations.sglang.tenants import AdapterNames, Tenants

RANK, HIDDEN = 4, 8


@pytest.fixture(scope="module", autouse=True)
def sglang() -> None:
    sglang_cpu.activate()
    # Packages that SGLang imports emit deprecation warnings.
    with warnings.catch_warnings(action="ignore"):
        from sglang.srt.lora import lora  # noqa: F401


def adapter(seed: int, lora_alpha: int = 16) -> Any:
    """An adapter as SGLang holds it."""
    from sglang.srt.lora.lora import LoRAAdapter
    from sglang.srt.lora.lora_config import LoRAConfig

    modules = ["q_proj", "k_proj", "v_proj"]
    config = LoRAConfig.from_dict(
        {"peft_type": "LORA", "target_modules": modules, "r": RANK, "lora_alpha": lora_alpha}, None, None
    )
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for module in modules:
        name = f"base_model.model.model.layers.0.self_attn.{module}"
        tensors[f"{name}.lora_A.weight"] = torch.randn(RANK, HIDDEN, generator=generator).to(torch.bfloat16)
        tensors[f"{name}.lora_B.weight"] = torch.randn(HIDDEN, RANK, generator=generator).to(torch.bfloat16)
    base: Any = SimpleNamespace(num_hidden_layers=1)
    made = LoRAAdapter("id", config, base, None, SimpleNamespace())  # type: ignore[arg-type]
    made.initialize_weights_from_tensors(tensors)
    return made


def test_an_adapter_keeps_its_namespace_when_it_is_loaded_again() -> None:
    loaded: dict[str, Any] = {}
    tenants = Tenants("auto", None, AdapterNames(lambda: loaded))

    def namespace(lora_id: str, extra_key: str = "acme") -> str:
        # SGLang appends the adapter's id.
        request: Any = SimpleNamespace(rid="r", sampling_params=None, extra_key=extra_key + lora_id, lora_id=lora_id)
        return tenants.handling(request).namespace

    loaded["one"] = adapter(1)
    first = namespace("one")
    loaded["two"] = loaded.pop("one")
    loaded["other weights"], loaded["other scale"] = adapter(2), adapter(1, lora_alpha=32)
    assert namespace("two") == first
    spaces = {namespace(lora_id, key) for lora_id in ("", "unknown", *loaded) for key in ("", "acme")}
    assert len(spaces) == 10
    loaded["three"] = adapter(1)
    assert namespace("three") == first
