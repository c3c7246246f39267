"""The folder that an agent is confined to: names that lead out of it are refused before a command sees them."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path

from rung.errors import UsageError
from rung.files import read_text
from rung.workload.by_name import FAMILIES
from rung.workload.load import BUILTIN, KERNELBENCH

MOST = 100_000  # entries of a folder that are looked at for links
_HUB = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")  # Qwen/Qwen3-0.6B, resnet50.a1_in1k

_BESIDE = re.compile("capture|agent_info", re.IGNORECASE)  # trace/captured.py, trace/rocprof/v3_process.py


@dataclass(frozen=True)
class Root:
    """folder: absolute, without links. Paths that it gives back are relative to it: commands run there."""

    folder: Path

    @classmethod
    def of(cls, folder: Path) -> Root:
        """Raises UsageError where there is no such folder."""
        if not folder.is_dir():
            raise UsageError(f"--root {folder} is not a folder; give the one that agents may read and write in.")
        return cls(folder.resolve())

    def path(self, text: str) -> str:
        """A path, of a file that there may be or not, links followed. Raises UsageError where it leads out of the folder, or is a folder
        with a link that does."""
        if not text or "\0" in text:
            raise UsageError(f"{text!r} is not a path.")
        place = Path(os.path.realpath(self.folder / text))
        self._refuse_outside(place, text)
        if place.is_dir():
            self._refuse_links(place)
        inside = os.path.relpath(place, self.folder)
        return inside if inside[0] not in "-@" else f"./{inside}"  # else it would read as an option

    def trace(self, text: str) -> str:
        """A trace or a folder of traces. Readers look at some files beside one, too, so no link among these may lead out."""
        inside = self.path(text)
        place = self.folder / inside
        if not place.is_dir() and place.parent.is_dir():
            for beside in place.parent.iterdir():
                if beside.is_symlink() and (_BESIDE.search(beside.name) or beside.name.startswith(place.name)):
                    self._refuse_outside(Path(os.path.realpath(beside)), str(beside.relative_to(self.folder)))
        return inside

    def page(self, text: str) -> str:
        """A page that is to be written: no other file is replaced by one."""
        if not text.endswith(".html"):
            raise UsageError(f"{text}: give a page a name that ends in .html.")
        return self.path(text)

    def target(self, text: str) -> str:
        """What is to be run: a file of the folder, a built-in workload or a model by name. Raises UsageError for what may lie elsewhere,
        as a module by its dotted name."""
        if text in BUILTIN:
            return text
        if text.startswith(KERNELBENCH):
            return KERNELBENCH + self.path(text.removeprefix(KERNELBENCH))
        for prefix in FAMILIES:
            if text.startswith(prefix):
                return prefix + self._model(text.removeprefix(prefix))
        file, _, name = text.rpartition(":")
        if file.endswith(".py") and name.isidentifier():
            return f"{self.path(file)}:{name}"
        raise UsageError(
            f"{text!r} is not a target here: name a file and a function in it, as in model.py:make; or {', '.join(BUILTIN)}, "
            f"{KERNELBENCH}path.py, hf:NAME, timm:NAME or diffusers:NAME."
        )

    def run(self, text: str) -> str:
        """A run directory to go on with: the target that it names is confined, too."""
        place = self.path(text)
        try:
            target = json.loads(read_text(self.folder / place / "manifest.json"))["request"]["target"]
        except (OSError, ValueError, RecursionError, LookupError, TypeError):
            raise UsageError(f"{text} is not a run directory of a climb that can be resumed.") from None
        self.target(str(target))
        return place

    def revision(self, text: str) -> str:
        """A revision of the repository whose top is the folder: git reads and writes there."""
        if text.startswith("-") or not (self.folder / ".git").is_dir() or (self.folder / ".git").is_symlink():
            raise UsageError(
                f"base={text!r} needs a revision of a git repository whose top is {self.folder}: start `rung mcp` with --root there."
            )
        return text

    def _model(self, name: str) -> str:
        """The name of a published model as it is; that of a folder confined."""
        place = self.path(name)
        published = _HUB.fullmatch(name) and not os.path.lexists(self.folder / name)
        return name if published else place

    def _refuse_outside(self, place: Path, text: str) -> None:
        if not place.is_relative_to(self.folder):
            raise UsageError(
                f"{text} leads outside of {self.folder}, which this server is confined to; give a path inside of it, or start "
                "`rung mcp` with another --root."
            )

    def _refuse_links(self, folder: Path) -> None:
        """Commands read folders whole: a link in one must not lead out."""
        seen = 0
        for where, folders, files in os.walk(folder):
            for name in (*folders, *files):
                seen += 1
                entry = os.path.join(where, name)
                if os.path.islink(entry):
                    self._refuse_outside(Path(os.path.realpath(entry)), os.path.relpath(entry, self.folder))
            if seen > MOST:
                raise UsageError(
                    f"{folder} has more than {MOST} entries; name a smaller folder, or the file that is meant."
                )
