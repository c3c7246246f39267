"""`rung estimate`: parse, call, render."""

from __future__ import annotations

import argparse
from typing import Any

from rung.cli.common import add_command
from rung.errors import UsageError

EXAMPLE = """\
examples:
  rung estimate --hidden 4096 --layers 32 --heads 32 --kv-heads 8 --ffn 14336 --vocab 128256 --seq 2048 --gpu MI300X
  rung estimate --hidden 4096 --layers 32 --heads 32 --seq 4096 --batch 8 --mode train --gpu H100
  rung estimate --hidden 2048 --layers 16 --heads 32 --kv-heads 8 --seq 8192 --batch 16 --mode decode --gpu H200

What is left out is derived: --kv-heads as many as --heads, --head-dim hidden / heads, --ffn 8/3 of hidden (a multiple of
256; 4 x hidden with --mlp plain). In decode, --seq tokens are cached and one is computed for each of --batch sequences.
The models and their limits: docs/roofline.md.
"""


def add(commands: Any, help_text: str) -> None:
    parser = add_command(commands, "estimate", help_text, EXAMPLE, run)
    for name, text in (
        ("hidden", "width of the residual stream"),
        ("layers", "number of layers"),
        ("heads", "heads of the queries"),
        ("kv-heads", "heads of keys and values, where there are fewer"),
        ("head-dim", "width of a head"),
        ("ffn", "width of the MLP"),
    ):
        parser.add_argument(f"--{name}", type=int, metavar="N", help=text)
    parser.add_argument("--vocab", type=int, default=32000, metavar="N", help="size of the vocabulary (default: 32000)")
    parser.add_argument("--seq", type=int, default=2048, metavar="N", help="tokens a sequence (default: 2048)")
    parser.add_argument("--batch", type=int, default=1, metavar="N", help="sequences (default: 1)")
    parser.add_argument("--mode", default="infer", metavar="MODE", help="train, infer or decode (default: infer)")
    parser.add_argument("--dtype", default="bf16", metavar="TYPE", help="fp32, tf32, fp16, bf16 or fp8 (default: bf16)")
    parser.add_argument("--mlp", default="gated", choices=("gated", "plain"), help="three projections or two")
    parser.add_argument("--attention", default="causal", choices=("causal", "full"), help="(default: causal)")
    parser.add_argument("--tied", action="store_true", help="the output head is the embedding")
    parser.add_argument("--gpu", metavar="NAME", help="the GPU whose roof to show, as in MI300X or H100")


def run(parsed: argparse.Namespace) -> int:
    for name in ("hidden", "layers", "heads"):
        if getattr(parsed, name) is None:
            raise UsageError(f"--{name} is needed, as in `rung estimate --hidden 4096 --layers 32 --heads 32`.")
    from rung.analysis.estimate import Shape, estimate
    from rung.hardware.peaks import named
    from rung.report.estimate import estimate_lines
    from rung.runs import to_json

    gated = parsed.mlp == "gated"
    shape = Shape.of(
        hidden=parsed.hidden,
        layers=parsed.layers,
        heads=parsed.heads,
        kv_heads=parsed.kv_heads,
        head_dim=parsed.head_dim,
        ffn=parsed.ffn,
        vocab=parsed.vocab,
        seq=parsed.seq,
        batch=parsed.batch,
        gated=gated,
        tied=parsed.tied,
        causal=parsed.attention == "causal",
    )
    found = estimate(shape, mode=parsed.mode, dtype=parsed.dtype, peaks=named(parsed.gpu) if parsed.gpu else None)
    print(to_json(found) if parsed.json else "\n".join(estimate_lines(found)))
    return 0
