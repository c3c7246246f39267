"""Configurations of transformers and diffusers as architectures. Each family maps the names that it knows to functions of a
`Configuration`; what a library builds for a field that is left out stands here, too. Names and defaults: transformers 5.24 and diffusers
0.42, with whose models `benchmarks/analysis/estimate_counts.py` compares parameters and operations.
"""

from __future__ import annotations

from pathlib import Path

from rung.analysis.estimate.architecture import Architecture
from rung.analysis.estimate.configuration import Configuration, read
from rung.analysis.estimate.families import decoders, diffusion, encoder_decoders, encoders
from rung.errors import InputError

READERS = {**decoders.READERS, **encoders.READERS, **encoder_decoders.READERS, **diffusion.READERS}


def architecture(configuration: Configuration) -> Architecture:
    """Raises InputError for a kind of model that is not known, and for a field that is missing."""
    reader = READERS.get(configuration.kind)
    if reader:
        return reader(configuration)
    kind = configuration.kind
    if not kind:
        raise InputError(
            f"{configuration.where} has no model_type and no _class_name: give a model's config.json or its folder."
        )
    raise InputError(
        f"{configuration.where} describes a {kind!r:.60}, which Rung cannot estimate; it can estimate {', '.join(sorted(READERS))}."
    )


def read_architecture(path: Path) -> Architecture:
    """The architecture in a model's config.json, or in the folder that has it."""
    return architecture(read(path))
