"""SGLang for a machine without a network: a folder for PYTHONPATH, packed into archives small enough to be carried.

It is for CUDA 13, a Hopper GPU, Python 3.12, torch 2.11 and triton 3.6, which the machine has. Of sglang-kernel only
the sm90 operations for trees and verification are kept. flash-attention 3, DeepGEMM and flashinfer's prebuilt kernels
are left out; flashinfer compiles its kernels on the machine.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import zipfile
from fnmatch import fnmatch
from pathlib import Path

from agentspec.errors import ConfigError
from agentspec.progress import say

SGLANG = "0.5.17"
"""The newest release that is pinned to torch 2.11."""
_PACKAGES = (
    f"sglang=={SGLANG}", "transformers==5.12.1", "xgrammar==0.2.1", "openai==2.6.1", "openai-harmony==0.0.4",
    "outlines==0.1.11", "outlines-core==0.1.26", "apache-tvm-ffi==0.1.11", "torchao==0.17.0", "soundfile==0.13.1",
    "helion==1.4", "blobfile==3.0.0", "flashinfer-python==0.6.15.post1", "msgspec", "fastapi", "starlette", "pyzmq",
    "pydantic", "pydantic-core", "typing-inspection", "orjson", "pybase64", "compressed-tensors",
    "partial-json-parser", "uvicorn", "setproctitle", "llguidance", "interegular", "gguf", "IPython", "zstandard",
    "watchfiles", "jsonschema", "jsonschema-specifications", "referencing", "rpds-py", "dill", "python-multipart",
    "anthropic", "distro", "docstring-parser", "jiter", "sniffio", "pycryptodomex", "easydict", "datasets",
    "multiprocess", "lark", "nest-asyncio", "diskcache", "airportsdata", "torch-memory-saver", "quack-kernels",
    "loguru", "decorator", "traitlets", "parso", "stack-data", "executing", "asttokens", "pure-eval",
    "prompt-toolkit", "wcwidth", "matplotlib-inline", "pexpect", "ptyprocess", "ipython-pygments-lexers", "cffi",
    "pycparser", "redis", "hiredis", "pydantic-settings", "python-dotenv",
)  # fmt: skip
_KERNELS = "sglang-kernel==0.4.5"
_KEPT_OF_KERNELS = ("sgl_kernel/*", "triton_kernels/*", "*.dist-info/*")
_LEFT_OUT_OF_KERNELS = ("*flash_ops*", "*infllm_ops*", "*flashmla_ops*", "*/sm100/*")
_NOT_NEEDED = ("sglang/multimodal_gen", "sglang/test")
_TAGS = (
    *(f"manylinux_2_{minor}_x86_64" for minor in (39, 35, 34, 31, 28, 27, 26, 24, 17, 5)),
    "manylinux2014_x86_64", "manylinux1_x86_64", "linux_x86_64", "any",
)  # fmt: skip


def make_site(out: Path, part_bytes: int) -> list[Path]:
    """Downloads the packages from the configured index and writes `site.tar.xz.00`, `.01`, ... to `out`.

    Raises:
        ConfigError: A package could not be downloaded, or `tar`, `xz` or `split` is missing.
    """
    for tool in ("tar", "xz", "split"):
        if shutil.which(tool) is None:
            raise ConfigError(f"the archives are made with {tool}, which is not in the PATH; install it")
    out.mkdir(parents=True, exist_ok=True)
    for old in out.glob("site.tar.xz.*"):
        old.unlink()
    with tempfile.TemporaryDirectory(prefix="agentspec-site-") as name:
        wheels, site = Path(name) / "wheels", Path(name) / "site"
        site.mkdir()
        for package in (*_PACKAGES, _KERNELS):
            say(f"  {package}")
            _download(package, wheels)
        for wheel in sorted(wheels.glob("*.whl")):
            _unpack(wheel, site)
        for folder in (*site.glob("*.data"), *(site / path for path in _NOT_NEEDED)):
            shutil.rmtree(folder, ignore_errors=True)
        say("  packing")
        packed = subprocess.Popen(["tar", "c", "-C", str(site), "."], stdout=subprocess.PIPE)
        squeezed = subprocess.Popen(["xz", "-T0", "-6"], stdin=packed.stdout, stdout=subprocess.PIPE)
        split = ["split", "-b", str(part_bytes), "-d", "-a", "2", "-", str(out / "site.tar.xz.")]
        subprocess.run(split, stdin=squeezed.stdout, check=True)
        if packed.wait() or squeezed.wait():
            raise ConfigError("the site could not be packed; is the disk full?")
    return sorted(out.glob("site.tar.xz.*"))


def _download(package: str, wheels: Path) -> None:
    command = [
        *(sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet", "--no-deps"),
        *("--only-binary=:all:", "--python-version", "3.12", "--implementation", "cp", "--dest", str(wheels)),
        *(word for tag in _TAGS for word in ("--platform", tag)),
        package,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = done.stderr.strip().splitlines() or ["pip gives no reason"]
        raise ConfigError(f"{package} could not be downloaded: {said[-1]}")


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
