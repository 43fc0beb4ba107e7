"""Classifies torch functions and Tensor methods by name, where their arguments do not tell what they do."""

from __future__ import annotations


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Calls that return a tensor's values to Python.
READS = _names("""
    item tolist numpy __array__ __bool__ __int__ __float__ __index__ __complex__ __contains__ __repr__ __format__
    __reversed__ __dlpack__ equal allclose is_nonzero
    """)
# Calls with a result whose shape depends on a tensor's values.
SHAPED_BY_DATA = _names(
    "nonzero argwhere masked_select unique unique_consecutive _unique2 unique_dim bincount combinations"
)
INDEXING = _names("__getitem__ __setitem__ index index_put index_put_")
# Calls that reserve memory without writing to it.
ALLOCATIONS = _names("empty empty_like empty_strided empty_permuted new_empty new_empty_strided")
# Calls that make a tensor from Python values.
CONSTRUCTORS = _names("tensor as_tensor asarray new_tensor from_numpy")
# Calls that return properties of a tensor that the host knows.
FACTS = _names("""
    shape size dim ndim ndimension numel nelement __len__ dtype itemsize element_size nbytes layout stride storage_offset
    is_contiguous device get_device is_cuda is_cpu is_xpu is_meta is_mps is_mkldnn is_npu is_musa is_hpu is_mtia is_ipu
    is_maia is_sparse is_quantized is_nested is_floating_point is_complex is_signed is_inference is_conj is_neg is_pinned
    is_shared is_set_to is_same_size is_tensor requires_grad is_leaf grad_fn grad retain_grad names output_nr data_ptr
    untyped_storage storage typed_storage _version _is_view _is_zerotensor __hash__ __get__ get_default_dtype
    """)


def writes(name: str) -> bool:
    """Whether a method of this name changes its tensor."""
    return name == "__setitem__" or (name.endswith("_") and not name.endswith("__"))
