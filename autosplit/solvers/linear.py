"""Linear expressions and programs, free of any solver's library."""

from __future__ import annotations

from dataclasses import dataclass, field


class Affine:
    """A sum of variables with coefficients, and a constant."""

    __slots__ = ("constant", "terms")

    def __init__(self, constant: float = 0.0) -> None:
        self.terms: dict[int, float] = {}
        self.constant = constant

    def add(self, value: Affine | float, factor: float = 1.0) -> Affine:
        """Add ``factor * value`` in place."""
        if isinstance(value, Affine):
            self.constant += factor * value.constant
            for variable, coefficient in value.terms.items():
                self.terms[variable] = self.terms.get(variable, 0.0) + factor * coefficient
        else:
            self.constant += factor * value
        return self

    @property
    def known(self) -> bool:
        """Return whether no variable is left."""
        return not self.terms


@dataclass(frozen=True, slots=True)
class Variable:
    """Bounds of a variable, and whether it is an integer."""

    low: float
    high: float | None
    integer: bool


@dataclass(slots=True)
class LinearProgram:
    """Minimise ``objective`` where every row is at most 0."""

    variables: list[Variable] = field(default_factory=list)
    rows: list[Affine] = field(default_factory=list)
    objective: Affine = field(default_factory=Affine)

    def variable(self, low: float, high: float | None, *, integer: bool = False) -> Affine:
        """Return a new variable."""
        expression = Affine()
        expression.terms[len(self.variables)] = 1.0
        self.variables.append(Variable(low, high, integer))
        return expression

    def at_most(self, left: Affine | float, right: Affine | float) -> bool:
        """Ask for ``left <= right``; return False if that is known to be false."""
        row = Affine().add(left).add(right, -1.0)
        row.terms = {key: value for key, value in row.terms.items() if value}
        if row.known:
            return row.constant <= 1e-9
        self.rows.append(row)
        return True
