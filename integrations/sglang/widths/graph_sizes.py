"""The default width of a row, and the batch sizes for which each width gets graphs, so that their memory is bounded.

A verify step of r rows and width w computes r * w tokens. Without bounds, SGLang would capture the greatest width for
all batch sizes: 64 tokens for 256 rows are 16,384 tokens, whose logits alone take 16,384 * 128,256 * 4 bytes = 8.4 GB.
Each token of the largest captured step takes this memory on a device:

    logits        4 bytes * vocabulary, once for all widths: 0.5 MB for Llama 3. While requests sample, four more copies
                  exist for a moment, and the model's own logits of 2 bytes take half as much
    attention     for each width: 9 bytes * context with triton, 5 with flashinfer (1.2 MB and 0.7 MB at 131,072), almost
                  nothing with fa3. Triton also keeps partial results: 0.1 MB for Llama 3 8B, 8 MB for a model with MLA, such
                  as DeepSeek-V3 on 8 devices. A draft model has a backend of its own, which doubles it. Flashinfer also
                  takes a workspace of 0.4 GB for each width
    other         activations, about 0.1 MB for an 8B model, in memory that the graphs of all widths share

So a captured step has at most 2,048 tokens. It has fewer if logits and attention of the largest step would take more
than a tenth of the memory that weights and KV cache leave free. That memory is 13 GB by default on a GPU with 80 GB.
For Llama 3 8B this allows 2,048 tokens with fa3 (32 rows of width 64, 64 of 32, 128 of 16, 256 of 8; logits take 1.05
GB, and 5.8 GB in all while requests sample), and 710 with triton and a context of 131,072 (10 rows of width 64, 22 of
32, 44 of 16). Larger steps would hardly pay: an 8B model computes 16 GFLOP for each token, so 2,048 tokens take 55 ms
at 600 TFLOP/s. Reading the weights, 4 ms in every step, is then only 7 % of that. The narrowest width has graphs for
all batch sizes that SGLang would capture. A batch that is too large for a width uses a narrower one.

Each running request also holds KV slots for two steps ahead, 2 * 64 = 128 at width 64. For an 8B model (128 KB for each
token) these take 16 MB, or 3 % of a request of 4,096 tokens. The default width keeps these slots at 16,384 over all
requests, 2.1 GB for an 8B model. So it depends on --max-running-requests: 64 up to 128 requests, 32 up to 256, and 16
beyond. SGLang's own default with speculation is 48 requests, which hold 6,144 slots, 0.8 GB.
"""

from __future__ import annotations

from collections.abc import Sequence

from agentspec.integrations.sglang import arguments, compat
from agentspec.integrations.sglang.attention_backends import graph_bytes_per_token
from agentspec.integrations.sglang.sglang_types import ModelRunner, ServerArgs
from agentspec.integrations.sglang.widths.tiers import AUTO, FINE_WIDTHS, ONE, parse_widths, tier_widths

DEFAULT_WIDTH = 16
"""Tokens verified in each row, the root included, if steps have one width or a width costs memory for each row."""
DEFAULT_WIDTHS = (64, 32, DEFAULT_WIDTH)
"""The candidates if steps may be narrower and run in captured graphs. The first that the number of requests allows is
taken."""
MOST_TOKENS = 2048
"""The most tokens of a captured verify step."""

FINE_TOKENS = (120, 320)
"""The fewest and the most tokens of a captured step of one of the widths between powers of two: around those that a GPU
verifies in about the time of one."""

_RESERVED_SLOTS = 16384
_STEPS_AHEAD = 2
"""Number of steps for which SGLang reserves KV slots ahead, for each request."""
_MAX_RUNNING = 48
"""Number of requests that SGLang runs at once with speculation, unless the operator sets it."""
_SPARE_SHARE = 0.1
_LOGIT_BYTES = 4


def default_width(server_args: ServerArgs, widths: str) -> int:
    """The most tokens of a row of a verify step, unless the operator sets it.

    Args:
        server_args: Resolved up to the device, the attention backends and the configuration of graphs.
        widths: The setting of this name.
    """
    if not arguments.captures_graphs(server_args) or widths == ONE or arguments.enables_adapters(server_args):
        return DEFAULT_WIDTH
    if named := parse_widths(widths):
        return max(named[-1], DEFAULT_WIDTH)
    if arguments.keeps_token_states(server_args):
        # The state of such layers takes megabytes for each token of each running request.
        return DEFAULT_WIDTH
    rows = int(arguments.setting(server_args, "max_running_requests") or _MAX_RUNNING)
    fitting = (width for width in DEFAULT_WIDTHS if _STEPS_AHEAD * width * rows <= _RESERVED_SLOTS)
    return next(fitting, DEFAULT_WIDTH)


def limits(server_args: ServerArgs) -> arguments.GraphLimits:
    """The limits for the graphs of a server that captures graphs. Call it in the launcher, with a resolved record."""
    config = arguments.target_config(server_args)
    attention = graph_bytes_per_token(server_args, config)
    if arguments.has_draft_model(server_args):
        attention *= 2
    spare = arguments.spare_memory(server_args)
    tokens = MOST_TOKENS
    if spare:
        tokens = min(tokens, int(_SPARE_SHARE * spare * 1e9 / (_LOGIT_BYTES * int(config.vocab_size) + attention)))
    widest = int(arguments.setting(server_args, "speculative_num_draft_tokens") or 0)
    return arguments.GraphLimits(tokens=tokens, attention_bytes=attention, spare_gb=spare, widest=widest)


def captured_widths(model_runner: ModelRunner) -> tuple[int, ...]:
    """The widths, ascending, for which graphs are wanted; () if agentspec does not limit graphs.

    Call it while SGLang's configuration is that of the greatest width.
    """
    server_args = model_runner.server_args
    text = _bounded_setting(server_args)
    return wanted_widths(server_args, text) if text is not None else ()


def wanted_widths(server_args: ServerArgs, text: str) -> tuple[int, ...]:
    """The widths that the setting `widths` wants graphs for, ascending. Call it with a resolved record."""
    return tier_widths(text, arguments.verify_width(server_args), _chain_length(server_args))


def _chain_length(server_args: ServerArgs) -> int:
    """Number of tokens of the draft model's chains; 0 if it drafts none."""
    shape = compat.draft_shape(server_args) if arguments.has_draft_model(server_args) else None
    return shape.steps if shape is not None and shape.topk == 1 else 0


def bounded(batch_sizes: Sequence[int], width: int, model_runner: ModelRunner) -> list[int]:
    """The batch sizes for which verify steps of `width` tokens per row get graphs: a subset of SGLang's ascending
    `batch_sizes`. It has at least the smallest one, unless the width lies between powers of two. The narrowest width gets
    all, since every batch can use it."""
    server_args = model_runner.server_args
    text, noted = _bounded_setting(server_args), arguments.graph_limits(server_args)
    if text is None or noted is None or width <= (*parse_widths(text), 1)[0]:
        return list(batch_sizes)
    if text == AUTO and width in FINE_WIDTHS and width not in (noted.widest, _chain_length(server_args) + 1):
        least, most = FINE_TOKENS
        return [size for size in batch_sizes if least <= size * width <= min(most, noted.tokens)]
    return [size for size in batch_sizes if size * width <= noted.tokens or size == batch_sizes[0]]


def _bounded_setting(server_args: ServerArgs) -> str | None:
    """The setting `widths` of a server that captures several; None if it captures one width or none."""
    chosen = arguments.marked_settings(server_args)
    if chosen is None or arguments.graph_limits(server_args) is None or arguments.enables_adapters(server_args):
        return None
    text = str(chosen["widths"])
    return None if text == ONE else text
