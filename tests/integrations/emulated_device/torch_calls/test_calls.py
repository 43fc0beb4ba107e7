from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from agentspec.integrations.emulated_device.device.tensors import (
    DeviceName,
    DeviceTensor,
    EmulationError,
    PendingTensor,
    forced_logits,
)

HERE = DeviceName("cpu")
LONG = 1.0


def _busy(work: Any) -> float:
    """Queues work, and returns when it will be done."""
    return float(work.device.launch("verify", LONG, 0.0))


def _numbers() -> Any:
    return torch.arange(6, device=HERE)


READS: dict[str, Callable[[Any], object]] = {
    "item": lambda x: x[2].item(),
    "tolist": lambda x: x.tolist(),
    "numpy": lambda x: x.numpy(),
    "np.asarray": np.asarray,
    "bool": lambda x: bool(x[1]),
    "int": lambda x: int(x[1]),
    "float": lambda x: float(x[1]),
    "index": lambda x: range(9)[x[1]],
    "slice": lambda x: x[: x[2]],
    "cpu": lambda x: x.cpu(),
    "to": lambda x: x.to("cpu"),
    "to a dtype, blocking": lambda x: x.to("cpu", torch.int32),
    "to a host tensor": lambda x: x.to(torch.zeros(1)),
    "copy_": lambda x: torch.zeros(6, dtype=torch.int64).copy_(x),
    "print": str,
    "format": lambda x: f"{x[0]}",
    "nonzero": lambda x: x.nonzero(),
    "where": lambda x: torch.where(x > 2),
    "mask": lambda x: x[x > 2],
    "mask to write": lambda x: x.__setitem__(x > 2, torch.arange(3, device=HERE)),
    "masked_select": lambda x: x.masked_select(x > 2),
    "unique": lambda x: x.unique(),
    "repeat_interleave": lambda x: x.repeat_interleave(x),
    "equal": lambda x: torch.equal(x, x),
    "in": lambda x: 3 in x,
    "max of a list": lambda x: max(x.unbind(), key=int),
    "list of numbers": lambda x: torch.tensor([x[1], x[2]]),
    "number to one place": lambda x: x.__setitem__(2, 5),
    "tensor of numbers": lambda x: torch.tensor([1, 2], device=HERE),
    "blocking upload": lambda x: torch.zeros(3).to(HERE),
}

NO_READS: dict[str, Callable[[Any], object]] = {
    "add": lambda x: x + 1,
    "in place": lambda x: x.add_(1),
    "view": lambda x: x.view(2, 3)[0],
    "shape": lambda x: (x.shape, len(x), x.dtype, x.device, x.numel(), x.data_ptr()),
    "dtype": lambda x: x.to(torch.int32),
    "index": lambda x: x[x],
    "fill by mask": lambda x: x.__setitem__(x > 2, 0),
    "fill of a slice": lambda x: x.__setitem__(slice(1, 3), 0),
    "repeat_interleave": lambda x: x.repeat_interleave(x, output_size=15),
    "where": lambda x: torch.where(x > 2, x, 0),
    "upload": lambda x: torch.zeros(3).to(HERE, non_blocking=True),
    "download": lambda x: x.to("cpu", non_blocking=True),
    "copy_ to the host": lambda x: torch.zeros(6, dtype=torch.int64).copy_(x, non_blocking=True),
    "sort": lambda x: x.sort(),
    "host": lambda x: torch.arange(3).tolist(),
    "empty": lambda x: torch.empty(3, device=HERE),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_reads_wait_for_what_was_queued(work: Any, read: Callable[[Any], object]) -> None:
    numbers = _numbers()
    done = _busy(work)
    before = work.counts.host_reads + work.counts.blocking_h2d_copies
    read(numbers)
    assert work.clock.now() >= done
    assert work.counts.host_reads + work.counts.blocking_h2d_copies > before


@pytest.mark.parametrize("call", NO_READS.values(), ids=NO_READS)
def test_other_calls_wait_for_nothing(work: Any, call: Callable[[Any], object]) -> None:
    numbers = _numbers()
    done = _busy(work)
    call(numbers)
    assert work.clock.now() < done
    assert (work.counts.host_reads, work.device.waited) == (0, 0.0)


def test_what_is_computed_from_the_device_is_there_too(work: Any) -> None:
    numbers = _numbers()
    made = [
        *(numbers + 1, numbers[1:], numbers.float(), torch.cat([numbers, numbers]), numbers.new_zeros(3)),
        *numbers.split(2),
        *numbers.float().topk(2),
        torch.zeros_like(numbers),
        torch.as_tensor(numbers),
        torch.full((2,), 1, device=numbers.device),
        torch.from_numpy(np.zeros(2)).to(HERE),
    ]
    assert all(isinstance(tensor, DeviceTensor) for tensor in made)
    assert all(tensor.device.type == "emulated" and not tensor.is_cpu for tensor in made)
    here = [torch.zeros(3), torch.arange(3, device="cpu"), numbers.cpu(), torch.zeros(2, device=torch.device("cpu"))]
    assert not any(isinstance(tensor, DeviceTensor) for tensor in here)
    assert numbers.cpu().tolist() == list(range(6))


def test_operations_are_counted_and_charged_and_views_are_not(work: Any) -> None:
    numbers = _numbers()
    counts, start = work.counts, work.clock.now()
    before = counts.eager_ops
    _ = numbers.view(2, 3)[0].unsqueeze(0), torch.empty(4, device=HERE), numbers.to(torch.int64)
    assert counts.eager_ops == before
    _ = numbers + 1, numbers.add_(1)
    assert counts.eager_ops == before + 2
    assert work.clock.now() - start == pytest.approx(2 * 0.001)


def test_copies_to_the_device_are_counted_with_their_bytes(work: Any) -> None:
    there, counts = torch.empty(4, dtype=torch.int64, device=HERE), work.counts
    there.copy_(torch.arange(4), non_blocking=True)
    torch.arange(8, dtype=torch.int32).to(HERE, non_blocking=True)
    assert (counts.h2d_copies, counts.h2d_bytes, counts.blocking_h2d_copies) == (2, 64, 0)
    there.copy_(torch.arange(4))
    assert (counts.h2d_copies, counts.blocking_h2d_copies) == (3, 1)
    assert there.tolist() == [0, 1, 2, 3]


def test_who_reads_a_copy_before_it_is_done_is_told(work: Any) -> None:
    numbers, device = _numbers(), work.device
    _busy(work)
    copied, written = numbers.to("cpu", non_blocking=True), torch.zeros(6, dtype=torch.int64)
    written.copy_(numbers, non_blocking=True)
    event = device.event_type()
    event.record()
    assert len(copied) == 6
    for read in (lambda: copied.tolist(), lambda: copied.numpy(), lambda: written + 1, lambda: int(written[0])):
        with pytest.raises(EmulationError, match="has not written yet"):
            read()
    event.synchronize()
    assert copied.tolist() == written.tolist() == list(range(6))
    assert not isinstance(copied, PendingTensor)


def test_an_event_before_a_copy_does_not_cover_it(work: Any) -> None:
    numbers, event = _numbers(), work.device.event_type()
    event.record()
    _busy(work)
    copied = numbers.to("cpu", non_blocking=True)
    event.synchronize()
    with pytest.raises(EmulationError):
        copied.tolist()


def test_a_kernel_is_one_operation_whatever_it_does_inside(work: Any) -> None:
    def sorted_by_python(tensor: Any) -> Any:
        return torch.tensor(sorted(tensor.tolist())) + torch.arange(6)

    numbers, kernel = _numbers(), work.as_kernel(sorted_by_python)
    done, before = _busy(work), work.counts.eager_ops
    result = kernel(numbers)
    assert isinstance(result, DeviceTensor)
    assert work.counts.eager_ops == before + 1
    assert work.counts.host_reads == 0
    assert work.clock.now() < done


def test_logits_tell_their_likeliest_token_and_nothing_else(work: Any) -> None:
    logits = forced_logits(torch.tensor([7, 9, 100_000]), 131_072)
    assert tuple(logits.shape) == (3, 131_072)
    assert torch.argmax(logits, dim=-1).tolist() == [7, 9, 100_000]
    assert torch.argmax(logits, dim=-1, keepdim=True).shape == (3, 1)
    assert logits[1:].argmax(-1).tolist() == [9, 100_000]
    for other in (lambda: torch.softmax(logits, -1), lambda: logits / 2, lambda: logits.tolist(), lambda: logits[0, 5]):
        with pytest.raises(EmulationError, match="only greedy sampling"):
            other()


def test_tensors_of_host_and_device_in_one_operation_are_reported(calls: Any) -> None:
    _ = _numbers() + torch.arange(6)
    assert calls.mixed == {"add": 1}


def test_streams_that_do_not_wait_for_what_they_read_are_reported(work: Any) -> None:
    device = work.device
    _busy(work)
    written = torch.arange(3, device=HERE) + 1
    side = device.stream_type()
    with device.context_type(side):
        assert (written * 2).tolist() == [2, 4, 6]
        _ = written[1:].clone()
        assert written.cpu().tolist() == [1, 2, 3]
    assert work.unordered == {"mul": 1, "clone": 1, "__getitem__": 1, "cpu": 1}
    side.wait_stream(device.default_stream)
    with device.context_type(side):
        assert (written * 2).tolist() == [2, 4, 6]
    assert work.unordered["mul"] == 1
