"""What a request has generated but the scheduler has not processed yet.

With overlap scheduling the worker starts step N+1 before the scheduler has processed the result of step N. The
tokens accepted in step N are then in the relayed draft input only, not in `req.output_ids`:

    prompt | output_ids ............ | accepted in step N |
    <------- processed tokens ------> <---- unprocessed --->
    <------------- KV in the cache (seq_len) ----------->  |   the last accepted token has no KV yet

Hence seq_len + 1 == processed + unprocessed, always.
"""

from __future__ import annotations

from collections.abc import Sequence


class SpliceError(ValueError):
    """The scheduler's counts of a request contradict each other; the request must not be drafted for."""


def unprocessed_tokens(*, num_processed: int, seq_len: int, accepted: Sequence[int]) -> Sequence[int]:
    """The tokens to append to prompt + output_ids before drafting: all of `accepted`, or none.

    Args:
        num_processed: prompt and output tokens that the scheduler knows.
        seq_len: tokens whose KV is in the cache.
        accepted: what the previous step accepted, bonus token included; empty where nothing is relayed.

    Raises:
        SpliceError: the number of missing tokens is neither zero nor that of `accepted`.
    """
    missing = seq_len + 1 - num_processed
    if missing == 0:
        return ()
    if missing != len(accepted):
        raise SpliceError(
            f"KV holds {seq_len} tokens and the scheduler processed {num_processed}, so {missing} must be spliced in, "
            f"but the previous step accepted {len(accepted)}"
        )
    return accepted
