"""The time of one forward pass of a model, from a published architecture's roofline or from measured coefficients.

    seconds = fixed + per_row * rows
              + max(weights, per_token * tokens)
              + max(per_context * context, per_pair * tokens * context / rows)

The first maximum is the time of the linear layers, bound either by the weights' bytes or by the tokens' operations. The
second is the time of attention, bound either by the bytes of the KV cache, which are read once for all tokens of a row,
or by the operations of every pair of a computed token and a token of its row's context. Verifying a tree follows the
same formula, because a tree mask does not save operations.

The formula does not model GEMM tiles that a batch does not fill, clocks that fall under load, rows of very different
lengths (each row's context counts as the mean), or more than one GPU.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass as checked

_BYTES = 2
"""The number of bytes of a weight or of a cached value in bfloat16."""


Seconds = Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)]


@checked(frozen=True, slots=True, kw_only=True, config=ConfigDict(extra="forbid"))
class ForwardTime:
    """The coefficients of the time of a forward pass, in seconds; see the module for the formula. Raises ValueError if
    a coefficient is negative or not finite, or all are zero."""

    fixed: Seconds = 0.0
    """The time of every pass in addition to bytes and operations."""
    weights: Seconds = 0.0
    """The time to read all weights once."""
    per_token: Seconds = 0.0
    """The time for the linear layers' operations on one token."""
    per_context: Seconds = 0.0
    """The time to read one token of the KV cache."""
    per_pair: Seconds = 0.0
    """The time for attention's operations between one computed token and one token of context."""
    per_row: Seconds = 0.0

    def __post_init__(self) -> None:
        if not any(asdict(self).values()):
            raise ValueError("a forward pass must take some time, but all its coefficients are 0")

    def seconds(self, rows: int, tokens: int, context: float) -> float:
        """Seconds of one pass.

        Args:
            rows: Requests in the batch, at least 1.
            tokens: Computed tokens over all rows, padding included.
            context: Tokens that are read from the KV cache, over all rows.
        """
        rows = max(rows, 1)
        linear = max(self.weights, self.per_token * tokens)
        attention = max(self.per_context * context, self.per_pair * tokens * context / rows)
        return self.fixed + self.per_row * rows + linear + attention


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """The sizes of a decoder, as its config.json names them."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    vocab_size: int

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_attention_heads

    @property
    def kv_width(self) -> int:
        """The number of elements in one token's keys in one layer; its values have the same number."""
        return self.num_key_value_heads * self.head_dim

    def layer_parameters(self, input_width: int | None = None) -> int:
        """The number of parameters in the matrices of one layer. `input_width`: the width of the input of the query,
        key and value projections; None: the hidden size."""
        width = input_width or self.hidden_size
        attention = width * (self.hidden_size + 2 * self.kv_width) + self.hidden_size * self.hidden_size
        return attention + 3 * self.hidden_size * self.intermediate_size

    @property
    def output_parameters(self) -> int:
        """The number of parameters in the matrix from hidden states to logits.

        The embedding has equally many, but a pass reads only the rows of its tokens.
        """
        return self.vocab_size * self.hidden_size

    @property
    def parameters(self) -> int:
        """The number of parameters in all matrices, for a model whose embedding and output are not tied."""
        return self.num_hidden_layers * self.layer_parameters() + 2 * self.output_parameters


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """The rates that a GPU reaches in practice."""

    bandwidth: float
    """The memory bandwidth in bytes per second."""
    flops: float
    """Operations per second in bfloat16 matrix products."""
    layer_seconds: float
    """Seconds per layer in addition to bytes and operations: launches within a graph, norms, and kernel tails."""
    output_seconds: float
    """The same for the work after the last layer: logits and the choice of a token."""


def target_time(shape: ModelShape, device: Accelerator) -> ForwardTime:
    """The time of a decode or verify step, which computes logits for every token."""
    linear = shape.num_hidden_layers * shape.layer_parameters() + shape.output_parameters
    return _time(shape, device, shape.num_hidden_layers, linear, linear)


def prefill_time(shape: ModelShape, device: Accelerator) -> ForwardTime:
    """The time of a prefill. It computes logits only for each row's last token; their operations are neglected."""
    layers = shape.num_hidden_layers * shape.layer_parameters()
    return _time(shape, device, shape.num_hidden_layers, layers + shape.output_parameters, layers)


def head_time(shape: ModelShape, device: Accelerator, draft_vocabulary: int) -> ForwardTime:
    """The time of a pass of an EAGLE-3 head.

    The head has one layer of the target's width, whose input is an embedding concatenated with a hidden state. It
    computes logits of the draft vocabulary with its own output matrix and does not read the target's output matrix.
    """
    linear = shape.layer_parameters(2 * shape.hidden_size) + draft_vocabulary * shape.hidden_size
    return _time(shape, device, 1, linear, linear)


def head_extend_time(shape: ModelShape, device: Accelerator, draft_vocabulary: int) -> ForwardTime:
    """The time of a head's pass over verified tokens, which first projects three hidden states of the target to one."""
    joined = 3 * shape.hidden_size * shape.hidden_size
    linear = joined + shape.layer_parameters(2 * shape.hidden_size) + draft_vocabulary * shape.hidden_size
    return _time(shape, device, 1, linear, linear)


def _time(shape: ModelShape, device: Accelerator, layers: int, read: int, multiplied: int) -> ForwardTime:
    """The time of a pass through `layers` layers. `read`: the number of parameters that are read once. `multiplied`:
    the number of parameters that every token is multiplied with."""
    kv_bytes = 2 * shape.kv_width * layers * _BYTES
    # For every head, the scores and their products with values take one multiplication and one addition per element.
    pair = 4 * shape.num_attention_heads * shape.head_dim * layers
    return ForwardTime(
        fixed=device.output_seconds + layers * device.layer_seconds,
        weights=read * _BYTES / device.bandwidth,
        per_token=2 * multiplied / device.flops,
        per_context=kv_bytes / device.bandwidth,
        per_pair=pair / device.flops,
    )
