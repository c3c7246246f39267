"""Kernels that torch.compile generated, from the shapes of their arguments.

A kernel's name says which operators it fuses (triton_poi_fused_add_mul_3), its arguments which tensors it touches. Each
counts once: whether one is read, written or both is not recorded, so the bytes are the least that is possible. Of a table
whose rows are picked by an index, as many rows count as there are indices. The
operations of fused pointwise kernels are not known; they are bound by memory. Matrix product templates (triton_tem_)
have [m, k], [k, n] and [m, n] among their arguments; those of other templates (convolution, flex attention) do not say
enough.
"""

from __future__ import annotations

from rung.analysis.costs.call import Call, Cost, Tensor, Unknown, precision, wider


def kernel(call: Call) -> Cost:
    """A kernel of Inductor's, by name; sizes and block numbers among its arguments are no tensors."""
    tensors = [t for t in call.tensors if t.shape]
    if not tensors:
        raise Unknown
    moved = sum(_touched(t, tensors) for t in tensors)
    kind = precision(wider(*tensors))
    if call.name.startswith("triton_tem_"):
        return Cost(_product(tensors), moved, kind, matrix=True)
    return Cost(0, moved, kind)


def _touched(table: Tensor, tensors: list[Tensor]) -> int:
    """The bytes of a tensor; where it is [rows, width] and there are both n < rows integers and n rows of this width, of n rows."""
    if len(table.shape) != 2 or "int" in table.dtype:
        return table.bytes
    rows, width = table.shape
    picked = [
        index.size
        for index in tensors
        if "int" in index.dtype and index.size < rows
        and any(t.shape[-1] == width and t.size == index.size * width for t in tensors if t is not table)
    ]  # fmt: skip
    return min([table.bytes, *(n * width * table.item for n in picked)])


def _product(tensors: list[Tensor]) -> int:
    """2 (batch) m n k of the first three tensors that can be two factors and their product."""
    for dimensions in (2, 3):
        shapes = [t.shape for t in tensors if len(t.shape) == dimensions]
        for i, a in enumerate(shapes):
            for j, b in enumerate(shapes[i + 1 :], i + 1):
                if a[:-2] == b[:-2] and a[-1] == b[-2] and (*a[:-1], b[-1]) in shapes[j + 1 :]:
                    batch = a[0] if dimensions == 3 else 1
                    return 2 * batch * a[-2] * a[-1] * b[-1]
    raise Unknown
