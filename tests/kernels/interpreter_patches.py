"""Corrections of Triton's interpreter for the tests that run under it; apply() makes them."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy
import torch
import triton.language as tl
from triton.language.semantic import TritonSemantic
from triton.runtime import interpreter

_patch_tensor = interpreter._patch_lang_tensor


def _patch_lang_tensor(tensor: type, scope: Any) -> None:
    """Triton 3.6 passes one-element arrays to range(), which newer versions of numpy reject."""
    _patch_tensor(tensor, scope)
    scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.squeeze()))


_convert = interpreter._convert_float


def _convert_float(numbers: Any, of: Any, to: Any, rounding: Any) -> Any:
    """Round to nearest even from float32 to bfloat16, as GPUs do; the interpreter truncates."""
    if of != tl.float32 or to != tl.bfloat16:
        return _convert(numbers, of, to, rounding)
    rounded = torch.from_numpy(numpy.ascontiguousarray(numbers)).bfloat16()
    return rounded.view(torch.int16).numpy().view(numpy.uint16)


_patch_language = functools.cache(interpreter._patch_lang)


def _patch_lang(function: Any) -> Any:
    """Replace the functions of triton.language once per kernel, and keep them replaced.

    Triton searches all members of the language at each call of a device function, a third of the time of the
    tests. These processes only interpret, so nothing has to be restored.
    """
    _patch_language(function)
    return interpreter._LangPatchScope()


_numpy_dtype = functools.cache(interpreter._get_np_dtype)


def _get_np_dtype(dtype: Any) -> Any:
    """Look the numpy dtype of an element up once; Triton builds a table of all dtypes at each call."""
    element = dtype.scalar
    return numpy.dtype(numpy.uint64) if element.is_ptr() else _numpy_dtype(element)


@functools.cache
def _shape(sizes: tuple[int, ...]) -> tuple[Any, Any]:
    """Return the shape of a tensor and its number of elements, as Triton stores them."""
    return tl.core.tuple([tl.constexpr(size) for size in sizes]), tl.constexpr(math.prod(sizes))


def _init_tensor(self: Any, handle: Any, type: Any) -> None:
    """Create a tensor as Triton does; tensors of the same size share their shape."""
    self.handle, self.type, self.dtype = handle, type, type.scalar
    self.shape, self.numel = _shape(tuple(type.shape) if type.is_block() else ())


_init_block = tl.block_type.__init__


@functools.cache
def _block(sizes: tuple[int, ...]) -> Any:
    """Return a block type of these sizes, which Triton has checked."""
    block = tl.block_type.__new__(tl.block_type)
    _init_block(block, tl.void, list(sizes))
    return block


def _init_block_type(self: Any, element_ty: Any, shape: Any) -> None:
    """Create a block type as Triton does; its sizes are checked once for all blocks of these sizes."""
    sizes = tuple(size.value if isinstance(size, tl.constexpr) else size for size in shape)
    block = _block(sizes)
    self.element_ty, self.shape, self.numel = element_ty, block.shape, block.numel
    self.name = f"<{sizes}, {element_ty.name}>"


_broadcast = TritonSemantic.broadcast_impl_value


@functools.cache
def _joint_sizes(left: tuple[int, ...], right: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the sizes of two blocks after broadcasting; None if they differ in dimensions or do not fit."""
    if not left or not right:
        return left or right
    fit = len(left) == len(right) and all(a == b or 1 in (a, b) for a, b in zip(left, right, strict=True))
    return tuple(map(max, left, right)) if fit else None


def _expanded(tensor: Any, sizes: tuple[int, ...]) -> Any:
    """Return a tensor that is broadcast to these sizes."""
    if tensor.type.is_block():
        if tensor.type.shape is _block(sizes).shape:
            return tensor
        numbers = numpy.broadcast_to(tensor.handle.data, sizes)
    else:
        numbers = numpy.full(sizes, tensor.handle.data.reshape(()), tensor.handle.data.dtype)
    return tl.tensor(interpreter.TensorHandle(numbers, tensor.dtype), tl.block_type(tensor.dtype, sizes))


def _broadcast_impl_value(self: Any, left: Any, right: Any) -> Any:
    """Broadcast two tensors as Triton does; the sizes of the result are computed once per pair of sizes."""
    of_left, of_right = (each.type.shape if each.type.is_block() else () for each in (left, right))
    if of_left is of_right:  # blocks of the same sizes share their shape (_block)
        return left, right
    sizes = _joint_sizes(tuple(of_left), tuple(of_right))
    if sizes is None:
        return _broadcast(self, left, right)
    return _expanded(left, sizes), _expanded(right, sizes)


_check_types = TritonSemantic.binary_op_type_checking_impl


def _binary_op_type_checking_impl(self: Any, left: Any, right: Any, *options: Any, **named: Any) -> Any:
    """Broadcast two tensors of one dtype at once: none is converted, except where halves are divided."""
    divides = len(options) > 3 or "div_or_mod" in named
    tensors = isinstance(left, tl.tensor) and isinstance(right, tl.tensor)
    if tensors and not divides and left.dtype is right.dtype and not left.dtype.is_ptr():
        return self.broadcast_impl_value(left, right)
    return _check_types(self, left, right, *options, **named)


_cast = TritonSemantic.cast


def _cast_at_once(self: Any, tensor: Any, dtype: Any, *options: Any) -> Any:
    """Return a tensor that has this dtype at once."""
    return tensor if tensor.dtype is dtype else _cast(self, tensor, dtype, *options)


def _check_overflow(self: Any, left: Any, right: Any, operation: Any) -> None:
    """Assert that the result fits into the dtype, as Triton does, with numpy instead of a dozen tensors."""
    dtype = left.dtype
    if dtype.int_bitwidth >= 64:
        return
    assert left.dtype is right.dtype
    compute = {"add": numpy.add, "sub": numpy.subtract, "mul": numpy.multiply}[operation.__name__]
    exact = compute(left.handle.data, right.handle.data, dtype=numpy.int64)
    fits = exact.min() >= dtype.get_int_min_value() and exact.max() <= dtype.get_int_max_value()
    assert fits, f"int{dtype.int_bitwidth} overflow detected for operation {operation.__name__}"


def apply() -> None:
    """Patch Triton's interpreter, until this process ends; tests/kernels/conftest.py calls this."""
    interpreter._patch_lang_tensor = _patch_lang_tensor
    interpreter._convert_float = _convert_float
    interpreter._patch_lang = _patch_lang
    interpreter._get_np_dtype = _get_np_dtype
    tl.tensor.__init__ = _init_tensor
    tl.block_type.__init__ = _init_block_type
    TritonSemantic.broadcast_impl_value = _broadcast_impl_value
    TritonSemantic.binary_op_type_checking_impl = _binary_op_type_checking_impl
    TritonSemantic.cast = _cast_at_once
    TritonSemantic.binary_op_sanitize_overflow_impl = _check_overflow
    numpy.seterr(over="ignore", invalid="ignore")  # a GPU returns inf and NaN without a warning
