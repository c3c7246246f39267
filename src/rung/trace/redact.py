"""Keeps what explains a run out of its recorded environment and command, and nothing that could open a door."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

HIDDEN = "(redacted)"

# Only variables that change what a GPU program does; whatever else an environment holds may be anybody's secret.
_KEPT_PREFIXES = (
    "AMD_", "CUBLAS_", "CUDA_", "FSDP_", "GPU_", "HIP", "HSA_", "MIOPEN_", "MKL_", "NCCL_", "OMP_", "OMPI_COMM_WORLD_",
    "PMI_", "PYTORCH_", "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "RCCL_", "ROCBLAS_",
    "ROCM_", "ROCPROF", "ROCR_", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_NTASKS", "SLURM_PROCID", "TENSILE_", "TORCH",
    "TRITON_", "VLLM_",
)  # fmt: skip
_SECRET_NAME = re.compile(r"token|secret|passw|credential|auth|cookie|private|api_?key|access_?key|\bkey\b", re.I)
_SECRET_VALUE = re.compile(
    r"\b(?:hf_|gh[pousr]_|github_pat_|glpat-|sk-|xox[abprs]-|AKIA|ASIA|npm_|pypi-)[\w\-]{8,}"
    r"|\beyJ[\w\-]{8,}\.[\w\-]+\.[\w\-]*"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----"
    r"|(?<=://)[^/\s:@]+:[^/\s@]+(?=@)"
)
_SECRET_OPTION = re.compile(
    r"(?P<name>[\w\-]*(?:token|secret|passw\w*|credentials?|auth|cookie|(?:api|[_\-])key))"
    r"(?P<link>[=:]\s*|\s+)(?P<value>\"[^\"]*\"|'[^']*'|[^\s\"']+)",
    re.I,
)

# "--api-key VALUE": only where the option's last word is the secret, or --max-tokens 128 would be one.
_SECRET_LAST_WORD = re.compile(r"^--?[\w.\-]*(?:token|key|secret|passw\w*|credentials?)$", re.I)


def environment(variables: Mapping[str, object]) -> dict[str, str]:
    """The variables that matter to a GPU program, their values free of what looks like a secret."""
    return {
        str(name): HIDDEN if _SECRET_NAME.search(str(name)) else _SECRET_VALUE.sub(HIDDEN, str(value))
        for name, value in variables.items()
        if str(name).startswith(_KEPT_PREFIXES)
    }


def command(line: str) -> str:
    """A command line without the values of options that name a secret, nor values that look like one."""
    return _SECRET_VALUE.sub(HIDDEN, _SECRET_OPTION.sub(rf"\g<name>\g<link>{HIDDEN}", line))


def redacted(value: Any, name: str = "") -> Any:
    """Any recorded value without secrets: by the name that it is kept under, and within commands by the names there."""
    if name and _SECRET_NAME.search(name) and isinstance(value, (str, bytes)):
        return HIDDEN
    if isinstance(value, Mapping):
        return {key: redacted(inner, str(key)) for key, inner in value.items()}
    if isinstance(value, str):
        return command(value)
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return _words(value)
    return value


def _words(words: Sequence[Any]) -> list[Any]:
    """A command in words: the secret may be the word after the option that names it."""
    kept: list[Any] = []
    secret_follows = False
    for word in words:
        kept.append(HIDDEN if secret_follows and isinstance(word, str) else redacted(word))
        secret_follows = isinstance(word, str) and _SECRET_LAST_WORD.match(word) is not None
    return kept
