"""Run in the replica on what a GPU host gets: imports what servers import, and resolves the command lines of a size.

python check.py DATA SIZE
"""

import importlib
import sys
from pathlib import Path

MODULES = (
    "aiohttp",
    "sglang.launch_server", "sglang.srt.managers.scheduler", "sglang.srt.entrypoints.http_server",
    "sglang.srt.models.llama", "sglang.srt.models.llama_eagle3", "sglang.srt.speculative.eagle_worker_v2",
    "sglang.srt.speculative.ngram_worker", "sglang.srt.layers.attention.triton_backend",
    "sglang.srt.layers.attention.dsa_backend", "sglang.srt.layers.attention.deepseek_v4_backend",
    "sglang.srt.layers.attention.flashmla_backend",
    "agentspec.integrations.sglang.workers.hybrid", "agentspec.evals.gpu.__main__", "agentspec.evals.gpu.smoke",
)  # fmt: skip


def main() -> None:
    data, size_name = Path(sys.argv[1]), sys.argv[2]
    for module in MODULES:
        importlib.import_module(module)
    print(f"{len(MODULES)} modules import")

    from sglang.srt.plugins import load_plugins
    from sglang.srt.server_args import prepare_server_args

    from agentspec.evals.gpu import servers, sizes

    load_plugins()
    size = sizes.SIZES[size_name]
    for name, system in servers.SYSTEMS.items():
        words = [*servers.arguments(system, size, data, backend="triton", max_running=16), "--sleep-on-idle"]
        if system.algorithm != "none":
            words = ["--speculative-algorithm", system.algorithm, *words]
        args = prepare_server_args(["--model-path", str(sizes.model_folder(size, data)), *words])
        if args.disable_overlap_schedule or args.disable_cuda_graph:
            raise SystemExit(f"{name}: overlap and graphs must be on")
        print(
            f"{name}: {args.attention_backend}, {args.speculative_num_draft_tokens} draft tokens, page {args.page_size}, "
            f"prefill graphs {args.cuda_graph_config.prefill.backend} {args.cuda_graph_config.prefill.bs}"
        )


main()
