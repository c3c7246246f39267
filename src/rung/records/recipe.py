"""What `rung apply --json` prints: a recipe as the changes that it makes."""

from __future__ import annotations

from rung.records.record import Part


class Change(Part, kw_only=True):
    """One rung. contract: what it may do to numbers; changes: in words."""

    rung: str
    level: int
    contract: str
    changes: str


class Applied(Part, kw_only=True):
    """variables: those that the process would have had to be started with; original: inputs that are left to the model as it is, by how
    many elements they have; shapes: what becomes of other input shapes; measured: where it was made; differs: what is not as there;
    untold: what the recipe does not tell that it was made for; fits: the target, where it was asked about and all is as there."""

    recipe: str
    status: str
    changes: list[Change]
    variables: dict[str, str]
    original: dict[str, int]
    shapes: str
    measured: dict[str, float]
    differs: list[str]
    untold: list[str]
    fits: str | None
