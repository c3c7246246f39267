"""`rung estimate`: parse, call, render."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rung.cli.common import add_command
from rung.errors import UsageError

EXAMPLE = """\
example:
  $ rung estimate --hf config.json --gpu MI300X --seq 2048
  8.03 G parameters, bf16: one forward pass over all tokens, 2,048 tokens
  part                         work   share  memory traffic  FLOP/byte  time at the roof  bound
  projections            5.50 TFLOP   17.3%         4.8 GiB       1078           4.20 ms  compute
  mlp                    23.1 TFLOP   72.5%        17.2 GiB       1247           17.7 ms  compute
  total                  31.8 TFLOP  100.0%        39.8 GiB        745           27.4 ms  compute
  At the roof of one MI300X: 74.8 k tokens/s, compute-bound.
  Memory: 15.7 GiB (fits in 192 GiB): weights 15.0 GiB, cache 256 MiB, activations 501 MiB.

more:
  rung estimate --hf DeepSeek-V3 --mode decode --seq 8192 --batch 64 --gpu H200 --tensor-parallel 8
  rung estimate --hf Qwen3-8B --mode train --gpu H100 --data-parallel 8 --sharding fsdp
  rung estimate --hidden 4096 --layers 32 --heads 32 --kv-heads 8 --ffn 14336 --vocab 128256

--hf reads a config.json of transformers or diffusers, or the folder that has it. Nothing is
downloaded or run. Without --hf the numbers describe a decoder like Llama's. In decode, --seq tokens
are cached, and one token is computed for each of --batch sequences. docs/internals/estimate.md has
the models, their formulas and limits.
"""
_NUMBERS = (
    ("hidden", "width of the residual stream"),
    ("layers", "number of layers"),
    ("heads", "query heads"),
    ("kv-heads", "heads of keys and values (default: as many as --heads)"),
    ("head-dim", "width of a head (default: hidden / heads)"),
    ("ffn", "width of the MLP (default: 8/3 of hidden, a multiple of 256; 4 x hidden with --mlp plain)"),
    ("vocab", "size of the vocabulary (default: 32000)"),
)


def add(commands: Any, help_text: str) -> None:
    parser = add_command(commands, "estimate", help_text, EXAMPLE, run)
    parser.add_argument("--hf", type=Path, metavar="PATH", help="a model's config.json, or the folder that has it")
    for name, text in _NUMBERS:
        parser.add_argument(f"--{name}", type=int, metavar="N", help=text)
    parser.add_argument(
        "--mlp", choices=("gated", "plain"), help="kind of MLP: gated has three projections, plain two (default: gated)"
    )
    parser.add_argument("--attention", choices=("causal", "full"), help="causal or full attention (default: causal)")
    parser.add_argument("--tied", action="store_true", help="the output head shares its weights with the embedding")
    parser.add_argument(
        "--seq", type=int, metavar="N", help="tokens per sequence (default: the model's own, else 2048)"
    )
    parser.add_argument(
        "--source", type=int, metavar="N", help="tokens of the encoder's input, or of the prompt of an image model"
    )
    parser.add_argument("--batch", type=int, default=1, metavar="N", help="number of sequences (default: 1)")
    parser.add_argument(
        "--mode", default="infer", choices=("train", "infer", "decode"), help="what a step is (default: infer)"
    )
    parser.add_argument(
        "--dtype",
        default="bf16",
        choices=("fp32", "tf32", "fp16", "bf16", "fp8"),
        help="of weights and products (default: bf16)",
    )
    parser.add_argument("--gpu", metavar="NAME", help="the GPU, as in MI300X or H100")
    parser.add_argument("--tensor-parallel", type=int, default=1, metavar="N", help="GPUs that share each layer")
    parser.add_argument(
        "--data-parallel", type=int, default=1, metavar="N", help="groups of such GPUs, of --batch sequences each"
    )
    parser.add_argument(
        "--sharding",
        default="ddp",
        choices=("ddp", "fsdp", "zero1", "zero2", "zero3"),
        help="what data-parallel GPUs divide among them; ddp, nothing (default: ddp)",
    )


def run(parsed: argparse.Namespace) -> int:
    from rung.analysis.estimate.step import estimate
    from rung.hardware.peaks import named
    from rung.records.record import plain
    from rung.report.estimate import estimate_lines
    from rung.runs import to_json

    found = estimate(
        _model(parsed),
        mode=parsed.mode,
        seq=parsed.seq,
        source=parsed.source,
        batch=parsed.batch,
        dtype=parsed.dtype,
        peaks=named(parsed.gpu) if parsed.gpu else None,
        tensor_parallel=parsed.tensor_parallel,
        data_parallel=parsed.data_parallel,
        sharding=parsed.sharding,
    )
    print(to_json(plain(found)) if parsed.json else "\n".join(estimate_lines(found)))
    return 0


def _model(parsed: argparse.Namespace) -> Any:
    """The architecture of a configuration, or the one that the numbers describe."""
    names = [name for name, _ in _NUMBERS] + ["mlp", "attention", "tied"]
    given = {name: value for name in names if (value := getattr(parsed, name.replace("-", "_"))) not in (None, False)}
    if parsed.hf:
        from rung.analysis.estimate.families import read_architecture

        if given:
            raise UsageError(f"--hf says what --{next(iter(given))} is: leave one of them out.")
        return read_architecture(parsed.hf)
    from rung.analysis.estimate.architecture import decoder

    for name in ("hidden", "layers", "heads"):
        if name not in given:
            raise UsageError(
                f"--{name} is needed, as in `rung estimate --hidden 4096 --layers 32 --heads 32`; or give --hf config.json."
            )
    return decoder(
        hidden=parsed.hidden,
        layers=parsed.layers,
        heads=parsed.heads,
        kv_heads=parsed.kv_heads,
        head_dim=parsed.head_dim,
        ffn=parsed.ffn,
        vocab=32000 if parsed.vocab is None else parsed.vocab,
        gated=parsed.mlp != "plain",
        tied=parsed.tied,
        causal=parsed.attention != "full",
    )
