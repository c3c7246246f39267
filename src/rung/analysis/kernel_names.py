"""Names of kernels as a reader can take them in; documents and CSV keep them whole."""

from __future__ import annotations

import re

_NOISE = re.compile(
    r"^(?:std::enable_if<.*?>::type |void )|\(anonymous namespace\)::|\bat::native::|\bat::cuda::|\bat::|\bstd::(?=array|bfloat16)|\(int\)(?=\d)"
)
_DTYPES = {
    "c10::BFloat16": "bf16",
    "c10::Half": "fp16",
    "__hip_bfloat16": "bf16",
    "__nv_bfloat16": "bf16",
    "__half": "fp16",
}
_DTYPE = re.compile("|".join(_DTYPES))
# Kernels that run whatever function they are given: that function is what a reader wants to know.
_CARRIER = re.compile(r"^(\w*elementwise_kernel\w*|reduce_kernel|multi_tensor_apply_kernel)<")
_FUNCTION = re.compile(r"\b(\w*(?:Functor\w*|_kernel\w*|KernelImpl|_functor|Ops|_cuda_out)|launch_\w+)(?=[<(,> ])")
_WRAPPERS = re.compile(r"gpu_kernel_impl\w*|[AB]UnaryFunctor|BinaryFunctor|CUDAFunctor")
_ELEMENT = re.compile(r"\b(bf16|fp16|float|double|int|long|bool|signed char|unsigned char)\b")
_CUTLASS = re.compile(r"^cutlass\w*::Kernel2?<(\w+)>$")
_TENSILE = re.compile(r"^(?:Custom_)?(Cijk_A\w+?_B\w+?_\w+?)_(?:Bias|HA|S_SAV|UserArgs|MT).*?(MT\d+x\d+x\d+)")


def readable(name: str) -> str:
    """Without the parameters of the function, the namespaces that every PyTorch kernel has, and Tensile's tuning; of a
    kernel that runs a function given to it, that function first: "MulFunctor<bf16> in vectorized_elementwise_kernel".
    """
    found = _TENSILE.match(name)
    if found:
        return f"{found[1]} {found[2]}"
    text = _NOISE.sub("", name)
    if text.endswith(")") and "<" in text:
        depth = 0
        for at in range(len(text) - 1, -1, -1):
            depth += (text[at] == ")") - (text[at] == "(")
            if depth == 0:
                text = text[:at] or text
                break
    text = _DTYPE.sub(lambda match: _DTYPES[match[0]], text)
    cutlass = _CUTLASS.match(text)
    if cutlass:
        return cutlass[1]
    carrier = _CARRIER.match(text)
    named = (found[1] for found in _FUNCTION.finditer(text, carrier.end())) if carrier else iter(())
    function = next((name for name in named if not _WRAPPERS.fullmatch(name)), None)
    if carrier is None or function is None:
        return text
    element = _ELEMENT.search(text, carrier.end())
    return f"{function}{f'<{element[1]}>' if element else ''} in {carrier[1]}"
