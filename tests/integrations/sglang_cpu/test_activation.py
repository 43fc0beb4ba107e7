"""When activation acts, and what a fresh interpreter finds afterwards. Every case runs in its own process."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from programs import output_of

pytest.importorskip("torch", reason="pip install torch")

ACTIVATE = "from agentspec.integrations import sglang_cpu; print(sglang_cpu.activate())"
KERNEL_FILE = "import sgl_kernel; print(sgl_kernel.__file__)"


def python(code: str, *folders: Path, **variables: str) -> list[str]:
    """The lines that the code prints; `folders` come first on its path."""
    path = os.pathsep.join([*map(str, folders), *filter(None, sys.path)])
    env = {k: v for k, v in os.environ.items() if k not in ("SGLANG_USE_CPU_ENGINE", "TORCH_COMPILE_DISABLE")}
    env |= {"PYTHONPATH": path, **variables}
    return output_of(sys.executable, "-c", code, env=env).splitlines()


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
torch.ops.sgl_kernel.init_cpu_threads_env("0,1")  # as ARM hosts do at the start
torch.ops.sgl_kernel.initialize(1, 0)
try:
    torch.ops.sgl_kernel.initialize(2, 0)
except RuntimeError as error:
    print(error)
"""
    active, absent, present, imported, message, refusal = python(code)
    assert (active, absent, present, imported) == ("True", "False False", "True True", "ImportError")
    assert "no fused_experts" in message and "use a GPU" in message and "serve one rank; got 2" in refusal


def test_torchvision_imports_without_its_binary(tmp_path):
    registers = "import torch\n@torch.library.register_fake('torchvision::nms')\ndef fake(*args): ...\n"
    package(tmp_path, "torchvision", registers)
    (tmp_path / "torchvision" / "_C.so").write_bytes(b"linked against a library that is missing")
    code = f"{ACTIVATE}; import torchvision; print(torchvision.__spec__.loader is torchvision.__loader__)"
    assert python(code, tmp_path) == ["True", "True"]
