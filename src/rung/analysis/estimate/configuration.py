"""A model's configuration as transformers and diffusers write it: a JSON file, read and never run."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from rung.errors import InputError
from rung.files import read_text

_MOST = 2**31
_MOST_LAYERS = 10_000
# Where a model's folder has it; a pipeline of diffusers has the model that denoises in a folder of its own.
_PLACES = ("config.json", "transformer/config.json")


@dataclass(frozen=True)
class Configuration:
    """fields: as the file has them; where: the file, and the part of it. defaults: what the library has for a field that it leaves out.

    Each reader takes several names of one field. All raise InputError where a field is missing or is not what it should be.
    """

    fields: Mapping[str, Any]
    where: str
    defaults: Mapping[str, Any] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """transformers' model_type, or diffusers' class; "" where the file has neither."""
        found = self.fields.get("model_type") or self.fields.get("_class_name") or ""
        return found if isinstance(found, str) else ""

    def _raw(self, names: tuple[str, ...]) -> Any:
        for source in (self.fields, self.defaults):
            for name in names:
                if source.get(name) is not None:
                    return source[name]
        return None

    def maybe(self, *names: str) -> int | None:
        """A whole number from 1 to 2^31, or None where it is not there."""
        value = self._raw(names)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < _MOST:
            raise InputError(
                f"{self.where} has {value!r:.60} as {names[0]}: it should be a whole number from 1 to 2^31."
            )
        return value

    def integer(self, *names: str) -> int:
        found = self.maybe(*names)
        if found is None:
            raise InputError(
                f"{self.where} lacks {' or '.join(names)}, which a model of kind {self.kind!r:.60} needs: add it."
            )
        return found

    def layers(self, *names: str) -> int:
        """A number of layers, which are looked at one by one."""
        found = self.integer(*names)
        if found > _MOST_LAYERS:
            raise InputError(f"{self.where} has {found} as {names[0]}: no model has more than {_MOST_LAYERS} layers.")
        return found

    def count(self, name: str, otherwise: int) -> int:
        """A whole number that may be 0."""
        return 0 if self.fields.get(name) in (0, False) else self.maybe(name) or otherwise

    def flag(self, name: str, otherwise: bool) -> bool:
        value = self._raw((name,))
        if value is None:
            return otherwise
        if not isinstance(value, bool):
            raise InputError(f"{self.where} has {value!r:.60} as {name}: it should be true or false.")
        return value

    def word(self, name: str, otherwise: str) -> str:
        value = self._raw((name,))
        return value if isinstance(value, str) else otherwise

    def several(self, name: str) -> tuple[Any, ...]:
        """A list; none where it is not there."""
        value = self._raw((name,))
        return tuple(value) if isinstance(value, list) else ()

    def labels(self, otherwise: int) -> int:
        """The classes of a classifier."""
        named = self.fields.get("id2label")
        return len(named) if isinstance(named, dict) and named else self.maybe("num_labels") or otherwise

    def part(self, name: str) -> Configuration:
        inner = self.fields.get(name)
        if not isinstance(inner, dict):
            raise InputError(f"{self.where} lacks {name}, the configuration of the language model: add it.")
        return Configuration(inner, f"{name} of {self.where}")


def read(path: Path) -> Configuration:
    """The configuration in a file or in a model's folder. Raises InputError where there is none."""
    file = path
    if path.is_dir():
        file = next((path / place for place in _PLACES if (path / place).is_file()), path / _PLACES[0])
    try:
        fields = msgspec.json.decode(read_text(file))
    except OSError as error:
        raise InputError(
            f"{file} could not be read ({error.strerror or error}): give a model's config.json or its folder."
        ) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"{file} is not JSON ({str(error)[:80]}): give a model's config.json or its folder.") from None
    if not isinstance(fields, dict):
        raise InputError(f"{file} has no fields: give a model's config.json or its folder.")
    return Configuration(fields, os.fspath(file))
