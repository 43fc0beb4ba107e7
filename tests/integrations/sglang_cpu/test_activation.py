"""When activation acts, and what a fresh interpreter finds afterwards. Every case runs in its own process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="pip install torch")

ACTIVATE = "from agentspec.integrations import sglang_cpu; print(sglang_cpu.activate())"
KERNEL_FILE = "import sgl_kernel; print(sgl_kernel.__file__)"


def python(code: str, *folders: Path, **variables: str) -> list[str]:
    """The lines that the code prints; `folders` come first on its path."""
    path = os.pathsep.join([*map(str, folders), *filter(None, sys.path)])
    env = {k: v for k, v in os.environ.items() if k not in ("SGLANG_USE_CPU_ENGINE", "TORCH_COMPILE_DISABLE")}
    env |= {"PYTHONPATH": path, **variables}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, text=True, capture_output=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def package(folder: Path, name: str, code: str = "") -> Path:
    (folder / name).mkdir(parents=True)
    (folder / name / "__init__.py").write_text(code)
    return folder


@pytest.fixture
def no_gpu(tmp_path: Path) -> Path:
    """A torch without a GPU, quick to import."""
    code = "class cuda:\n    is_available = staticmethod(lambda: False)\ndef get_num_threads(): return 1"
    return package(tmp_path / "no_gpu", "torch", code)


def test_a_cpu_build_is_left_alone(tmp_path, no_gpu):
    real = package(tmp_path, "sgl_kernel")
    assert python(f"{ACTIVATE}; {KERNEL_FILE}", real, no_gpu) == ["False", str(real / "sgl_kernel/__init__.py")]


def test_a_cuda_build_without_a_gpu_is_replaced(tmp_path, no_gpu):
    real = package(tmp_path, "sgl_kernel")
    package(real, "sgl_kernel/sm90")
    code = f"{ACTIVATE}; import importlib.util; print(importlib.util.find_spec('sgl_kernel').origin)"
    active, origin = python(code, real, no_gpu)
    assert active == "True" and not Path(origin).is_relative_to(real)


def test_a_gpu_is_left_alone(tmp_path):
    gpu = package(tmp_path, "torch", "class cuda:\n    is_available = staticmethod(lambda: True)")
    code = f"{ACTIVATE}; import os, importlib.util; print(importlib.util.find_spec('sgl_kernel'))"
    assert python(f"{code}; print('SGLANG_USE_CPU_ENGINE' in os.environ)", gpu) == ["False", "None", "False"]


def test_activation_is_idempotent_and_reaches_children(no_gpu):
    code = f"""
{ACTIVATE}
{ACTIVATE}
import json, os, subprocess, sys
find = "import importlib.util as u; print(u.find_spec('sgl_kernel').origin)"
print(json.dumps({{
    "path": os.environ["PYTHONPATH"].split(os.pathsep),
    "finders": [type(finder).__name__ for finder in sys.meta_path],
    "here": __import__("importlib.util").util.find_spec("sgl_kernel").origin,
    "child": subprocess.run([sys.executable, "-c", find], text=True, capture_output=True).stdout.strip(),
    "torch": os.environ["TORCH_COMPILE_DISABLE"],
    "engine": os.environ["SGLANG_USE_CPU_ENGINE"],
}}))
"""
    first, second, told = python(code, no_gpu)
    state = json.loads(told)
    assert first == second == "True"
    assert state["finders"].count("ReferenceFinder") == 1
    assert sum(path.endswith(str(Path("sglang_cpu/site"))) for path in state["path"]) == 1
    assert str(no_gpu) in state["path"]
    assert state["here"] == state["child"]
    assert state["here"].endswith(str(Path("sglang_cpu/sgl_kernel/__init__.py")))
    assert (state["engine"], state["torch"]) == ("1", "1")


def test_a_setting_of_the_user_is_kept(no_gpu):
    code = "from agentspec.integrations import sglang_cpu; print(sglang_cpu.environment()['SGLANG_USE_CPU_ENGINE'])"
    assert python(code, no_gpu, SGLANG_USE_CPU_ENGINE="0") == ["0"]


def test_the_hidden_sitecustomize_still_runs(tmp_path, no_gpu):
    (tmp_path / "sitecustomize.py").write_text("print('theirs')")
    code = f"{ACTIVATE}; import subprocess, sys; subprocess.run([sys.executable, '-c', 'print(\"child\")'])"
    # Unbuffered, so that the lines of parent and child come in order.
    assert python(code, tmp_path, no_gpu, PYTHONUNBUFFERED="1") == ["theirs", "True", "theirs", "child"]


def test_activation_after_sglang_is_an_error(tmp_path, no_gpu):
    package(tmp_path, "sglang")
    code = f"""
import sglang
try:
    {ACTIVATE.replace("; ", chr(10) + "    ")}
except RuntimeError as error:
    print(error)
"""
    assert "before `import sglang`" in python(code, tmp_path, no_gpu)[0]


def test_a_missing_kernel_is_named_and_looks_absent():
    code = f"""
{ACTIVATE}
import sgl_kernel, sgl_kernel.speculative, torch
print(hasattr(sgl_kernel, "fused_experts"), hasattr(torch.ops.sgl_kernel, "convert_weight_packed"))
print(hasattr(sgl_kernel, "verify_tree_greedy_cpu"), hasattr(torch.ops.sgl_kernel, "extend_attention_cpu"))
try:
    from sgl_kernel import fused_experts
except ImportError as error:
    print("ImportError")
try:
    sgl_kernel.fused_experts
except NotImplementedError as error:
    print(error)
"""
    active, absent, present, imported, message = python(code)
    assert (active, absent, present, imported) == ("True", "False False", "True True", "ImportError")
    assert "no fused_experts" in message and "use a GPU" in message


def test_the_ops_that_arm_hosts_call_at_the_start():
    code = f"""
{ACTIVATE}
import sgl_kernel, torch
torch.ops.sgl_kernel.init_cpu_threads_env("0,1")
torch.ops.sgl_kernel.initialize(1, 0)
try:
    torch.ops.sgl_kernel.initialize(2, 0)
except RuntimeError as error:
    print(error)
"""
    assert "serve one rank; got 2" in python(code)[1]


def test_attention_takes_the_arguments_of_every_release():
    """Older releases pass neither the scales of a quantized cache nor whether attention is causal."""
    code = f"""
{ACTIVATE}
import sgl_kernel, torch
ops = torch.ops.sgl_kernel
query, keys, slots = torch.randn(2, 2, 4), torch.randn(8, 2, 4), torch.arange(8, dtype=torch.int32).view(1, 8)
row, scale = torch.zeros(1, dtype=torch.int64), 0.5
def extend(*scales, causal=()):
    lens = torch.tensor([5]), torch.tensor([2]), torch.tensor([0])
    ops.extend_attention_cpu(query, None, None, output := torch.empty(2, 2, 4), keys, keys, *scales, slots, row, *lens, 2,
                             scale, 0.0, False, 0, None, None, None, *causal)
    return output
def decode(*scales):
    ops.decode_attention_cpu(query[:1], keys, keys, *scales, output := torch.empty(1, 2, 4), None, None, row, keys, slots,
                             row, torch.tensor([5]), scale, 0.0, False, 0, None, None)
    return output
print(torch.equal(extend(), extend(1.0, 1.0, causal=[True])), torch.equal(extend(), extend(1.0, 1.0, causal=[False])))
print(torch.equal(decode(), decode(1.0, 1.0)))
"""
    assert python(code) == ["True", "True False", "True"]


def test_torchvision_imports_without_its_binary(tmp_path):
    registers = "import torch\n@torch.library.register_fake('torchvision::nms')\ndef fake(*args): ...\n"
    package(tmp_path, "torchvision", registers)
    (tmp_path / "torchvision" / "_C.so").write_bytes(b"linked against a library that is missing")
    code = f"{ACTIVATE}; import torchvision; print(torchvision.__spec__.loader is torchvision.__loader__)"
    assert python(code, tmp_path) == ["True", "True"]


# What `eagle_utils` of SGLang 0.5.23 looks like on a CPU: it has no kernels and verifies every batch greedily.
VERIFICATION = """
tree_speculative_sampling_target_only = top_k_renorm_prob = None
top_p_renorm_prob = 'its own'
def _verify_uses_greedy(*, is_all_greedy, is_cpu, use_rejection_sampling, is_hip=False):
    return is_all_greedy or is_cpu or (is_hip and not use_rejection_sampling)
"""


def sglang_with(folder: Path, modules: dict[str, str]) -> None:
    """Writes a package `sglang` with only these modules, whose names are relative to `sglang.srt`."""
    for name, code in modules.items():
        path = folder.joinpath("sglang", "srt", *name.split(".")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(code)
        for parent in path.relative_to(folder).parents:
            if parent != Path("."):
                (folder / parent / "__init__.py").write_text("")


MODULES = {
    "arg_groups.speculative_hook": """
def _disable_overlap_schedule_for_cpu(server_args): server_args.append('no overlap')
def handle(server_args): _disable_overlap_schedule_for_cpu(server_args)
""",
    "constrained.xgrammar_backend": """
def _allocate_token_bitmask(vocab_size, batch_size): return is_pin_memory_available
class XGrammarGrammar:
    def apply_vocab_mask(self, logits, vocab_mask): return logits.device.type == 'cpu'
""",
    "layers.attention.attention_registry": "ATTENTION_BACKENDS = {'intel_amx': 'tree', 'torch_native': 'causal'}",
    "layers.attention.intel_amx_backend": """
class IntelAMXAttnBackend:
    def _build_extend_metadata(self, batch): return 'its own'
    def forward_extend(self, q, k, v, layer, batch): return self.extend_metadata[0]
""",
    "managers.overlap_utils": """
gather_spec_extras = None
class FutureMap:
    def _resolve_spec_extras(self, batch): return gather_spec_extras(*batch)
""",
    "model_executor.model_runner": "class ModelRunner:\n    def forward(self, batch): return 'its own'\n",
    "speculative.draft_utils": """
class DraftBackendFactory:
    def _create_backend(self, name, choices, error): return sorted(choices.items())
""",
    "speculative.eagle_utils": "",
}
# The modules of SGLang 0.5.17, which compute lengths that are not used, report tensors to a GPU's allocator, and have
# masks of grammars for accelerators only.
OLD_MODULES = {
    **MODULES,
    "constrained.xgrammar_backend": """
def _allocate_token_bitmask(vocab_size, batch_size): raise RuntimeError('pin_memory=True requires an accelerator')
class XGrammarGrammar:
    def apply_vocab_mask(self, logits, vocab_mask): raise RuntimeError(f'Unsupported device: {logits.device.type}')
""",
    "layers.attention.intel_amx_backend": """
class IntelAMXAttnBackend:
    extend_metadata = draft_decode_metadata = None
    def _build_extend_metadata(self, batch): return 'its own'
    def forward_extend(self, q, k, v, layer, batch): return batch.seq_lens
    def forward_decode(self, q, k, v, layer, batch): return batch.seq_lens
""",
    "managers.overlap_utils": """
gather_spec_extras = None
class FutureMap:
    def _resolve_spec_extras(self, batch):
        indices = batch.spec_info.future_indices
        indices.record_stream(None)
        batch.spec_info.gathered = gather_spec_extras(indices, *self.buffers)
""",
}


def test_modules_of_sglang_are_patched_on_import(tmp_path):
    sglang_with(tmp_path, MODULES)
    code = f"""
{ACTIVATE}
from sglang.srt.layers.attention.attention_registry import ATTENTION_BACKENDS
from sglang.srt.speculative.draft_utils import DraftBackendFactory
from sglang.srt.layers.attention.intel_amx_backend import IntelAMXAttnBackend
own = IntelAMXAttnBackend.forward_extend
sglang_cpu.patch_sglang()
print(ATTENTION_BACKENDS["torch_native"])
print(DraftBackendFactory()._create_backend("decode", {{"intel_amx": 1}}, ""))
from sglang.srt.model_executor.model_runner import ModelRunner
print(ModelRunner.forward._agentspec_cpu, IntelAMXAttnBackend.forward_extend is own)
"""
    patched = ["[('intel_amx', 1), ('torch_native', 1)]", "True True"]
    assert python(code, tmp_path, CUDA_VISIBLE_DEVICES="") == ["True", "tree", *patched]


@pytest.mark.parametrize(("overlap", "found"), [("on", "[]"), ("off", "['no overlap']")])
def test_speculation_overlaps_where_it_is_asked_for(tmp_path, overlap, found):
    sglang_with(tmp_path, MODULES)
    code = f"""
{ACTIVATE}
from sglang.srt.arg_groups.speculative_hook import handle
sglang_cpu.patch_sglang()
handle(settings := [])
print(settings)
"""
    assert python(code, tmp_path, CUDA_VISIBLE_DEVICES="", SGLANG_CPU_OVERLAP=overlap) == ["True", found]


def test_an_older_release_attends_to_as_many_tokens_as_its_step_has(tmp_path):
    sglang_with(tmp_path, OLD_MODULES)
    code = f"""
{ACTIVATE}
from types import SimpleNamespace
from sglang.srt.layers.attention.intel_amx_backend import IntelAMXAttnBackend
sglang_cpu.patch_sglang()
backend, batch = IntelAMXAttnBackend(), SimpleNamespace(seq_lens="the batch's")
def lengths():
    return [forward("q", "k", "v", "layer", batch) for forward in (backend.forward_extend, backend.forward_decode)]
print(lengths())
backend.extend_metadata, backend.draft_decode_metadata = ("verify", 1, 2), ("slots", "draft", 3)
print(lengths(), batch.seq_lens)
"""
    expected = ["True", '["the batch\'s", "the batch\'s"]', "['verify', 'draft'] the batch's"]
    assert python(code, tmp_path, CUDA_VISIBLE_DEVICES="") == expected


def test_the_relay_gathers_on_a_cpu(tmp_path):
    sglang_with(tmp_path, OLD_MODULES)
    code = f"""
{ACTIVATE}
from types import SimpleNamespace
import torch
from sglang.srt.managers.overlap_utils import FutureMap
sglang_cpu.patch_sglang()
relay = FutureMap()
rows = torch.arange(6.0).view(3, 2)
relay.buffers = rows, rows * 10, torch.arange(3), None
draft = SimpleNamespace(future_indices=torch.tensor([2, 0]))
relay._resolve_spec_extras(SimpleNamespace(spec_info=draft))
print(*[values if values is None else values.tolist() for values in draft.gathered])
print({{type(values).__name__ for values in (draft.future_indices, *draft.gathered[:3])}})
"""
    gathered = "[[4.0, 5.0], [0.0, 1.0]] [[40.0, 50.0], [0.0, 10.0]] [2, 0] None"
    assert python(code, tmp_path, CUDA_VISIBLE_DEVICES="") == ["True", gathered, "{'Tensor'}"]


def test_batches_are_verified_by_their_temperature(tmp_path):
    sglang_with(tmp_path, {"speculative.eagle_utils": VERIFICATION})
    code = f"""
{ACTIVATE}
from sglang.srt.speculative import eagle_utils as verification
from agentspec.integrations.sglang_cpu.verification import patch_verification
patch_verification()
uses_greedy = verification._verify_uses_greedy
print(*[uses_greedy(is_all_greedy=greedy, is_cpu=True, use_rejection_sampling=rejection)
        for greedy, rejection in [(True, False), (False, False), (False, True)]])
print(uses_greedy(is_all_greedy=False, is_cpu=True, use_rejection_sampling=False, is_hip=True))
print(verification.top_p_renorm_prob, verification.top_k_renorm_prob.__module__)
print(verification.tree_speculative_sampling_target_only.__module__)
"""
    sampling = "agentspec.integrations.sglang_cpu.sampling"
    assert python(code, tmp_path) == ["True", "True False True", "True", f"its own {sampling}", sampling]


@pytest.mark.parametrize("missing", ["_verify_uses_greedy", "top_k_renorm_prob"])
def test_a_release_that_verifies_otherwise_is_left_alone(tmp_path, no_gpu, missing):
    sglang_with(tmp_path, {"speculative.eagle_utils": VERIFICATION.replace(missing, "something_else")})
    code = f"""
{ACTIVATE}
from sglang.srt.speculative import eagle_utils as verification
print(verification.tree_speculative_sampling_target_only, hasattr(verification, "{missing}"))
"""
    assert python(code, tmp_path, no_gpu) == ["True", "None False"]


def test_an_older_release_masks_logits_by_grammars_on_a_cpu(tmp_path):
    sglang_with(tmp_path, OLD_MODULES)
    code = f"""
{ACTIVATE}
import torch
from sglang.srt.constrained import xgrammar_backend as grammars
mask = grammars._allocate_token_bitmask(40, 2)
print(mask.shape, (mask == -1).all().item())
mask[1] = torch.tensor([5, 0])
logits = torch.zeros(2, 40)
grammars.XGrammarGrammar().apply_vocab_mask(logits, mask)
print(*[torch.isfinite(row).nonzero().flatten().tolist() == allowed
        for row, allowed in zip(logits, [[*range(40)], [0, 2]])])
"""
    printed = ["True", "torch.Size([2, 2]) True", "True True"]
    assert python(code, tmp_path, CUDA_VISIBLE_DEVICES="") == printed


@pytest.mark.parametrize("name", ["_allocate_token_bitmask", "XGrammarGrammar.apply_vocab_mask"])
def test_a_release_that_masks_on_a_cpu_is_left_alone(tmp_path, name):
    sglang_with(tmp_path, MODULES)
    code = f"""
{ACTIVATE}
from sglang.srt.constrained import xgrammar_backend
print(xgrammar_backend.{name}.__module__)
"""
    assert python(code, tmp_path, CUDA_VISIBLE_DEVICES="") == ["True", "sglang.srt.constrained.xgrammar_backend"]


# What `eagle_utils` of 0.5.17 and 0.5.20 looks like: one function chooses how to verify, and imports its kernels.
OLD_VERIFICATION = """
_is_cpu = True
def verify_greedily(): return f"greedy, {'CPU' if _is_cpu else 'GPU'}"
def eagle_sample(verify_input, batch):
    if batch.sampling_info.is_all_greedy or _is_cpu:
        return verify_greedily()
    from sgl_kernel import top_k_renorm_prob, top_p_renorm_prob, tree_speculative_sampling_target_only
    if verify_input == "fails":
        raise ValueError
    return tree_speculative_sampling_target_only.__module__
"""


def test_batches_of_an_older_release_are_verified_by_their_temperature(tmp_path):
    modules = {
        "speculative.eagle_utils": OLD_VERIFICATION,
        "runtime_context": "class Spec: speculative_use_rejection_sampling = False\ndef get_spec(): return Spec",
    }
    sglang_with(tmp_path, modules)
    code = f"""
{ACTIVATE}
import contextlib
from types import SimpleNamespace
from sglang.srt import runtime_context
from sglang.srt.speculative import eagle_utils as verification
from agentspec.integrations.sglang_cpu.verification import patch_verification
patch_verification()
def sample(greedy, idle=False, verify_input=None):
    sampling = SimpleNamespace(is_all_greedy=greedy)
    batch = SimpleNamespace(sampling_info=sampling, forward_mode=SimpleNamespace(is_idle=lambda: idle))
    return verification.eagle_sample(verify_input, batch)
print(sample(True), sample(False), sample(False, idle=True), sep="; ")
with contextlib.suppress(ValueError):
    sample(False, verify_input="fails")
runtime_context.Spec.speculative_use_rejection_sampling = True
print(sample(False), verification._is_cpu, sep="; ")
"""
    drawn = "agentspec.integrations.sglang_cpu.sampling"
    assert python(code, tmp_path) == ["True", f"greedy, CPU; {drawn}; greedy, CPU", "greedy, CPU; True"]
