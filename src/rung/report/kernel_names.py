"""Names of kernels as a reader can take them in; documents and CSV keep them whole."""

from __future__ import annotations

import re

_NOISE = re.compile(
    r"^void |\(anonymous namespace\)::|\bat::native::|\bat::cuda::|\bat::|\bstd::(?=array|bfloat16)|\(int\)(?=\d)"
)
_DTYPES = {
    "c10::BFloat16": "bf16",
    "c10::Half": "fp16",
    "__hip_bfloat16": "bf16",
    "__nv_bfloat16": "bf16",
    "__half": "fp16",
}
_DTYPE = re.compile("|".join(_DTYPES))
_TENSILE = re.compile(r"^(?:Custom_)?(Cijk_A\w+?_B\w+?_\w+?)_(?:Bias|HA|S_SAV|UserArgs|MT).*?(MT\d+x\d+x\d+)")


def readable(name: str) -> str:
    """Without the parameters of the function, the namespaces that every PyTorch kernel has, and Tensile's tuning."""
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
    return _DTYPE.sub(lambda match: _DTYPES[match[0]], text)
