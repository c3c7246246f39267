"""Compares `rung estimate` with the classes of transformers and diffusers, built on the meta device: parameters, and the operations of a
forward pass as torch.utils.flop_counter counts them.

    pip install transformers diffusers
    python benchmarks/analysis/estimate_counts.py [--only WORD] [--flops]

Prints a table in Markdown. Nothing is downloaded: the configurations stand in tests/data/published_models.toml.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from rung.analysis.estimate.attentions import Attention, LatentAttention
from rung.analysis.estimate.block import Step
from rung.analysis.estimate.configuration import Configuration
from rung.analysis.estimate.families import architecture
from rung.analysis.estimate.mlps import Experts
from rung.analysis.estimate.step import estimate
from rung.toml import parse_toml

DATA = Path(__file__).parents[2] / "tests" / "data" / "published_models.toml"
SEQ, SOURCE = 256, 192


def built(row: dict[str, Any]) -> torch.nn.Module:
    """The library's own class of a configuration, without memory for its weights."""
    config = row["config"]
    if "_class_name" in config:
        made = getattr(importlib.import_module("diffusers"), config["_class_name"])
        with torch.device("meta"):
            return made.from_config({key: value for key, value in config.items() if key != "_class_name"})
    transformers = importlib.import_module("transformers")
    fields = {key: value for key, value in config.items() if key not in ("model_type", "architectures")}
    if config["model_type"] == "deepseek_v2":
        fields.setdefault("q_lora_rank", None)  # null in its files, which TOML does not have; left out it would be 1536
    settings = transformers.AutoConfig.for_model(config["model_type"], **fields)
    made = getattr(transformers, row.get("class", "AutoModelForCausalLM"))
    with torch.device("meta"):
        return made.from_config(settings) if made.__name__.startswith("Auto") else made(settings)


def inputs(config: dict[str, Any], tokens: int) -> dict[str, Any]:
    """What a forward pass of one sequence takes."""
    kind = config.get("model_type") or config["_class_name"]
    ids = torch.zeros(1, tokens, dtype=torch.long, device="meta")
    # Given a mask and positions, the models ask no tensor for its values, which one on the meta device does not have.
    mask = torch.zeros(1, 1, tokens, tokens, device="meta")
    positions = torch.arange(tokens, device="meta")[None]
    if kind in ("t5", "bart"):
        source = torch.zeros(1, SOURCE, dtype=torch.long, device="meta")
        return {"input_ids": source, "decoder_input_ids": ids, "decoder_attention_mask": mask}
    if kind == "whisper":
        frames = torch.zeros(1, config["num_mel_bins"], 2 * config["max_source_positions"], device="meta")
        return {"input_features": frames, "decoder_input_ids": ids, "decoder_attention_mask": mask,
                "decoder_position_ids": positions}  # fmt: skip
    if kind == "vit":
        return {"pixel_values": torch.zeros(1, 3, config["image_size"], config["image_size"], device="meta")}
    if kind in ("opt", "bloom", "bert", "roberta", "distilbert"):
        return {"input_ids": ids}
    one = torch.zeros(1, device="meta")
    if kind == "DiTTransformer2DModel":
        size = config["sample_size"]
        return {"hidden_states": torch.zeros(1, config["in_channels"], size, size, device="meta"), "timestep": one.long(),
                "class_labels": one.long()}  # fmt: skip
    if kind == "SD3Transformer2DModel":
        size = config["sample_size"]
        return {"hidden_states": torch.zeros(1, config["in_channels"], size, size, device="meta"), "timestep": one.long(),
                "encoder_hidden_states": torch.zeros(1, SOURCE, config["joint_attention_dim"], device="meta"),
                "pooled_projections": torch.zeros(1, config["pooled_projection_dim"], device="meta")}  # fmt: skip
    if kind == "FluxTransformer2DModel":
        return {"hidden_states": torch.zeros(1, tokens, config["in_channels"], device="meta"), "timestep": one, "guidance": one,
                "encoder_hidden_states": torch.zeros(1, SOURCE, config["joint_attention_dim"], device="meta"),
                "pooled_projections": torch.zeros(1, config["pooled_projection_dim"], device="meta"),
                "img_ids": torch.zeros(tokens, 3, device="meta"), "txt_ids": torch.zeros(SOURCE, 3, device="meta")}  # fmt: skip
    return {"input_ids": ids, "attention_mask": mask, "position_ids": positions}


def counted(model: torch.nn.Module, config: dict[str, Any], tokens: int) -> int:
    """Operations of one forward pass. The counter takes attention for the whole square of queries and keys."""
    extra = {} if "_class_name" in config else {"use_cache": False}
    if config.get("model_type") in ("bert", "roberta", "distilbert", "vit"):
        extra = {}
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model.eval()(**inputs(config, tokens), **extra)
    return counter.get_total_flops()


def square(config: dict[str, Any], tokens: int) -> tuple[int, int]:
    """Rung's operations of the same pass: as it counts them, and as the counter does: with attention's whole square, and without
    grouped products, of which it knows none."""
    model = architecture(Configuration(config, "here"))
    source = SOURCE if model.source is None or ("_class_name" in config and model.source) else None
    found = estimate(model, mode="infer", seq=tokens, source=source, dtype="fp32")
    whole = 0
    step = Step(1, tokens, tokens, found.source, "fp32")
    for count, block in model.blocks:
        if isinstance(block, Attention):
            block = replace(block, causal=False, window=None)
        elif isinstance(block, LatentAttention):
            key = block.nope + block.rope + block.value
            half = tokens * (tokens + 1) // 2
            whole += count * 2 * (tokens * tokens - half) * block.heads * key
        elif isinstance(block, Experts):
            whole -= count * 2 * tokens * block.top_k * (3 if block.gated else 2) * block.hidden * block.ffn
        whole += count * sum(work.times * work.cost.flops for work in block.work(step))
    return found.flops, whole


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="models whose name has this")
    parser.add_argument("--flops", action="store_true", help="the operations of a forward pass, too")
    parsed = parser.parse_args()
    torch.set_default_dtype(torch.bfloat16)  # in which experts are one grouped product, which the meta device takes
    rows = {name: row for name, row in parse_toml(DATA.read_text()).items() if parsed.only in name}
    print(
        "| model | published | Rung | the library's class | |"
        + (" forward, GFLOP: Rung | as the counter | counter |" if parsed.flops else "")
    )
    print("|---|---|---|---|---|" + ("---|---|---|" if parsed.flops else ""))
    wrong = 0
    for name, row in rows.items():
        ours = architecture(Configuration(row["config"], name))
        try:
            model = built(row)
            theirs = sum(weight.numel() for weight in model.parameters())
        except Exception as error:
            print(
                f"| {name} | {row['total']} | {ours.parameters:,} | not built: {type(error).__name__}: {str(error)[:90]} | |"
            )
            wrong += 1
            continue
        same = ours.parameters == theirs + row.get("library_apart", 0)
        wrong += not same
        note = "same" if ours.parameters == theirs else f"{theirs - ours.parameters:+,}, see the data"
        active = f" ({row['active']} active)" if "active" in row else ""
        mine = f"{ours.parameters:,}" + (f" ({ours.active:,} active)" if "active" in row else "")
        line = f"| {name} | {row['total']} B{active} | {mine} | {theirs:,} | {note if same else 'differs'} |"
        if parsed.flops:
            tokens = (
                ours.tokens
                if ours.tokens and row["config"].get("model_type") != "whisper" and "Flux" not in str(row["config"])
                else SEQ
            )
            try:
                own, whole = square(row["config"], tokens)
                line += f" {own / 1e9:,.3f} | {whole / 1e9:,.3f} | {counted(model, row['config'], tokens) / 1e9:,.3f} |"
            except Exception as error:
                line += f" {type(error).__name__}: {str(error)[:60]} | | |"
        print(line, flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
