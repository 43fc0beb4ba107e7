"""The error for a kernel that this package does not carry."""

from __future__ import annotations


class MissingKernelError(NotImplementedError, AttributeError):
    """SGLang asked `sgl_kernel` for a kernel that has no reference implementation.

    An AttributeError too, so that `hasattr` and `from sgl_kernel import ...` answer as on a build without the kernel.
    """

    def __init__(self, kernel: str) -> None:
        super().__init__(
            f"sgl_kernel has no {kernel} on this machine: agentspec's reference kernels cover dense models with plain, "
            "NGRAM, STANDALONE, EAGLE and EAGLE3 decoding. Serve another model or quantization, install a CPU build "
            "of sgl-kernel (which needs AMX), or use a GPU."
        )
        self.kernel = kernel
