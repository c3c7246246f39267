"""What `rung apply --json` prints, a recipe as the changes that it makes, and `rung rungs --json`, a list of what can be tried."""

from __future__ import annotations

from rung.records.record import SCHEMA, Part


class Change(Part, kw_only=True):
    """One rung. contract: what it may do to numbers; changes: in words."""

    rung: str
    level: int
    contract: str
    changes: str


class Applied(Part, kw_only=True, tag_field="kind", tag="apply"):
    """mode: `train` or `infer`, empty where the recipe does not say; variables: those that the process would have had to be started with;
    original: inputs that are left to the model as it is, by how many elements they have; shapes: what becomes of other input shapes; measured:
    where it was made; differs: what is not as there; untold: what the recipe does not tell that it was made for; fits: the target, where it was
    asked about and all is as there."""

    schema: int = SCHEMA
    recipe: str
    mode: str
    status: str
    changes: list[Change]
    variables: dict[str, str]
    original: dict[str, int]
    shapes: str
    measured: dict[str, float]
    differs: list[str]
    untold: list[str]
    fits: str | None


class ListedRung(Part, kw_only=True, tag_field="kind", tag="rung"):
    """numerics: what it may do to numbers; effect: how it shows; spares: what there is less of; kept: of `decided` attempts here."""

    schema: int = SCHEMA
    name: str
    level: int
    title: str
    changes: str
    numerics: str
    needs: list[str]
    effect: str
    replaces: list[str]
    spares: str
    kept: int
    decided: int
