"""SGLang and agentspec for a GPU host without a network: a folder for PYTHONPATH, and compiled kernels.

The host has CUDA 13, a Hopper GPU, Python 3.12, torch 2.11 and triton 3.6. Of sglang-kernel only the sm90 operations for
trees and verification are kept. Flash-attention 3, DeepGEMM and flashinfer are left out.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import zipfile
from fnmatch import fnmatch
from pathlib import Path

from agentspec.errors import ConfigError
from agentspec.progress import say

SGLANG = "0.5.17"
"""The newest release that is pinned to torch 2.11."""
_PACKAGES = (
    f"sglang=={SGLANG}", "sglang-kernel==0.4.5", "transformers==5.12.1", "tokenizers==0.22.2", "xgrammar==0.2.1",
    "openai==2.6.1", "openai-harmony==0.0.4", "outlines==0.1.11", "outlines-core==0.1.26", "apache-tvm-ffi==0.1.11",
    "torchao==0.17.0", "soundfile==0.13.1", "helion==1.4", "blobfile==3.0.0", "annotated-types", "opentelemetry-api",
    "msgspec", "fastapi", "starlette", "pyzmq", "pydantic", "pydantic-core", "pydantic-settings", "python-dotenv",
    "typing-inspection", "orjson", "pybase64", "compressed-tensors", "partial-json-parser", "uvicorn", "setproctitle",
    "llguidance", "interegular", "gguf", "IPython", "zstandard", "watchfiles", "jsonschema",
    "jsonschema-specifications", "referencing", "rpds-py", "dill", "python-multipart", "anthropic", "distro",
    "docstring-parser", "jiter", "sniffio", "pycryptodomex", "easydict", "datasets", "multiprocess", "lark",
    "nest-asyncio", "diskcache", "airportsdata", "torch-memory-saver", "loguru", "decorator", "traitlets", "parso",
    "stack-data", "executing", "asttokens", "pure-eval", "prompt-toolkit", "wcwidth", "matplotlib-inline", "pexpect",
    "ptyprocess", "ipython-pygments-lexers", "cffi", "pycparser", "redis", "hiredis", "sqlglot",
)  # fmt: skip
_KEPT_OF_KERNELS = ("sgl_kernel/*", "triton_kernels/*", "*.dist-info/*")
_LEFT_OUT_OF_KERNELS = ("*flash_ops*", "*infllm_ops*", "*flashmla_ops*", "*/sm100/*")
# The compiled routers of three entry points that are not used, and what is not loaded.
_NOT_NEEDED = (
    "sglang/multimodal_gen", "sglang/test", "sglang/srt/server/_core*.so", "sglang/srt/grpc/_core*.so",
    "sglang/srt/multimodal/_core*.so", "xgrammar/lib/*.a", "zstandard/_cffi*.so", "torch_memory_saver*_cu12*",
    "agentspec/evals/models/tiny-sql-draft", "*.data",
)  # fmt: skip
_TAGS = (
    *(f"manylinux_2_{minor}_x86_64" for minor in (39, 35, 34, 31, 28, 27, 26, 24, 17, 5)),
    "manylinux2014_x86_64", "manylinux1_x86_64", "linux_x86_64", "any",
)  # fmt: skip
_HERE = Path(__file__).parent
PROFILER = Path(__file__).parents[3] / "bin" / "py-spy"
"""Where the host has the sampler of Python stacks: in the site beside agentspec."""
VARIABLES = {"SGLANG_IS_FLASHINFER_AVAILABLE": "false"}
"""What a process on the host needs besides PYTHONPATH and TVM_FFI_CACHE_DIR."""


def make_site(site: Path, source: Path, replica: Path) -> None:
    """Fills a folder for PYTHONPATH. Packages that are there are kept; agentspec is built anew.

    Raises:
        ConfigError: A package could not be downloaded or built.
    """
    wheels = site.with_name("wheels")
    if not site.is_dir():
        say("downloading SGLang and its packages")
        host = [word for tag in _TAGS for word in ("--platform", tag)]
        _download(replica, wheels, "--python-version", "3.12", "--implementation", "cp", *host, *_PACKAGES)
        part = site.with_name("site.part")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir()
        for wheel in sorted(wheels.glob("*.whl")):
            _unpack(wheel, part)
        _without_flashinfer(part)
        _with_float32_norms(part)
        _without_deep_gemm(part)
        for path in part.rglob("*.so"):
            subprocess.run(["strip", "-g", str(path)], check=False, capture_output=True)
        part.rename(site)
        site.with_name("site.made").touch()
    say("building agentspec for the host's Python")
    built = site.with_name("built")
    shutil.rmtree(built, ignore_errors=True)
    environment = {**os.environ, "PATH": os.pathsep.join([str(replica.parent), os.environ.get("PATH", "")])}
    command = [str(replica), "-m", "pip", "wheel", "--quiet", "--no-build-isolation", "--no-deps", "--no-index"]
    _run([*command, "-w", str(built), str(source)], "agentspec could not be built", environment)
    shutil.rmtree(site / "agentspec", ignore_errors=True)
    _unpack(next(built.glob("*.whl")), site)
    for pattern in _NOT_NEEDED:
        for path in site.glob(pattern):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()


def add_profiler(site: Path, replica: Path) -> None:
    """Puts py-spy where PROFILER says, if it is not there.

    Raises:
        ConfigError: It could not be downloaded.
    """
    there = site / "bin" / PROFILER.name
    if there.is_file():
        return
    wheels = site.with_name("wheels")
    _download(replica, wheels, "py-spy")
    with zipfile.ZipFile(next(wheels.glob("py_spy-*.whl"))) as archive:
        name = next(name for name in archive.namelist() if name.endswith("/scripts/py-spy"))
        there.parent.mkdir(exist_ok=True)
        there.write_bytes(archive.read(name))
    there.chmod(0o755)


def compile_kernels(site: Path, jit: Path, replica: Path) -> None:
    """Has SGLang compile the kernels that the measured models use, where they are not there; it finds them by their
    sources. No GPU is needed.

    Raises:
        ConfigError: They could not be compiled.
    """
    say("compiling SGLang's kernels")
    command = [str(replica), "-P", str(_HERE / "replica" / "compile_kernels.py")]
    _run(command, "SGLang's kernels could not be compiled", replica_environment(site, jit, replica))
    for path in jit.rglob("*"):
        if path.is_file() and path.suffix != ".so":
            path.unlink()


def replica_environment(site: Path, jit: Path, replica: Path) -> dict[str, str]:
    """Variables with which the replica's Python takes this machine for the host: it sees a GPU, on which nothing runs."""
    place = "import nvidia, pathlib; print(pathlib.Path(list(nvidia.__path__)[0]) / 'cu13')"
    found = subprocess.run([str(replica), "-c", place], capture_output=True, text=True, check=True)
    cuda = Path(found.stdout.strip())
    for link, target in ((cuda / "lib" / "libcudart.so", "libcudart.so.13"), (cuda / "lib64", "lib")):
        if not link.exists():
            link.symlink_to(target)
    stub = jit.with_name("stub")
    stub.mkdir(parents=True, exist_ok=True)
    command = ["gcc", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", str(stub / "libcuda.so.1")]
    _run([*command, str(_HERE / "replica" / "libcuda.c")], "the stub of libcuda could not be compiled")
    return {
        **os.environ,
        **VARIABLES,
        "PYTHONPATH": os.pathsep.join([str(_HERE / "replica"), str(site)]),
        "TVM_FFI_CACHE_DIR": str(jit),
        "LD_LIBRARY_PATH": str(stub),
        "CUDA_HOME": str(cuda),
        "LIBRARY_PATH": str(cuda / "lib"),
        "PATH": os.pathsep.join([str(cuda / "bin"), str(replica.parent), os.environ.get("PATH", "")]),
    }


def _without_flashinfer(site: Path) -> None:
    """SGLang imports names of flashinfer at many places; its kernel package prefers flashinfer's where it can import it.
    So a stand-in has the names, and the kernel package does not find it."""
    shutil.copytree(_HERE / "replica" / "flashinfer", site / "flashinfer")
    for name in ("elementwise.py", "sampling.py"):
        path = site / "sgl_kernel" / name
        text = path.read_text(encoding="utf-8")
        path.write_text(text.replace("import flashinfer.", "import flashinfer_left_out."), encoding="utf-8")


def _with_float32_norms(site: Path) -> None:
    """The kernel package's RMSNorm takes half precision only, and the parity check is in float32. So torch does it."""
    path = site / "sgl_kernel" / "elementwise.py"
    path.write_text(path.read_text(encoding="utf-8") + _FLOAT32_NORMS, encoding="utf-8")


def _without_deep_gemm(site: Path) -> None:
    """SGLang's EAGLE-3 imports an attention backend of other models, and with it DeepGEMM, which is not carried."""
    path = site / "sglang" / "srt" / "layers" / "attention" / "dsa_backend.py"
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("    import deep_gemm\n", "    deep_gemm = None\n"), encoding="utf-8")


_FLOAT32_NORMS = """

_half_rmsnorm, _half_fused_add_rmsnorm = rmsnorm, fused_add_rmsnorm


def rmsnorm(input, weight, eps=1e-6, out=None, enable_pdl=None):
    if input.dtype != torch.float32:
        return _half_rmsnorm(input, weight, eps, out, enable_pdl)
    found = input * torch.rsqrt(input.pow(2).mean(-1, keepdim=True) + eps) * weight
    return found if out is None else out.copy_(found)


def fused_add_rmsnorm(input, residual, weight, eps=1e-6, enable_pdl=None):
    if input.dtype != torch.float32:
        return _half_fused_add_rmsnorm(input, residual, weight, eps, enable_pdl)
    residual.add_(input)
    rmsnorm(residual, weight, eps, out=input)
"""


def _download(replica: Path, wheels: Path, *words: str) -> None:
    pip = [str(replica), "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--dest", str(wheels)]
    _run([*pip, *words], "packages could not be downloaded")


def _unpack(wheel: Path, site: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        if wheel.name.startswith("sglang_kernel-"):
            names = [
                name
                for name in names
                if any(fnmatch(name, pattern) for pattern in _KEPT_OF_KERNELS)
                and not any(fnmatch(name, pattern) for pattern in _LEFT_OUT_OF_KERNELS)
            ]
        archive.extractall(site, names)


def _run(command: list[str], otherwise: str, environment: dict[str, str] | None = None) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines() or ["it gives no reason"]
        raise ConfigError(f"{otherwise}: {' / '.join(said[-3:])}")
