"""Named symbolic sizes: make them, and write expressions over them as Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from traceback import FrameSummary
from typing import Any, NoReturn

import sympy  # type: ignore[import-untyped]
import torch
from torch._dynamo.source import ConstantSource
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv
from torch.utils._sympy.printers import PythonPrinter

from autosplit.errors import DataError, TraceError
from autosplit.sizes import evaluate, symbols_in
from autosplit.tracers.frames import is_user_file, portable_path


class SizeEnv(ShapeEnv):
    """A shape environment with one symbol per name, which refuses sizes made of data.

    Parameters
    ----------
    hints
        Name of each symbol and the size it stands for while tracing.
    refuse
        Called when the forward asks for a value that only running it can tell; raises.
    """

    def __init__(self, hints: Mapping[str, int], refuse: Callable[[], NoReturn]) -> None:
        super().__init__()
        self._refuse = refuse
        self.sizes: dict[str, torch.SymInt] = {}
        self._symbols: dict[str, sympy.Symbol] = {}
        for name, hint in hints.items():
            source = ConstantSource(name)
            symbol = self.create_symbol(hint, source=source, dynamic_dim=DimDynamic.DYNAMIC)
            size = self.create_symintnode(symbol, hint=hint, source=source)
            assert isinstance(size, torch.SymInt)
            assert isinstance(symbol, sympy.Symbol)
            self.sizes[name] = size
            self._symbols[name] = symbol
        self._public = {
            symbol: sympy.Symbol(name, integer=True, positive=True)
            for name, symbol in self._symbols.items()
        }

    def create_unbacked_symint(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refuse: an integer read out of a tensor."""
        self._refuse()

    def create_unbacked_symfloat(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refuse: a number read out of a tensor."""
        self._refuse()

    def create_unbacked_symbool(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refuse: a truth value read out of a tensor."""
        self._refuse()

    def fixed(self) -> tuple[str, ...]:
        """Return the names whose size the forward pinned to a number or to another size."""
        return tuple(name for name, symbol in self._symbols.items() if symbol in self.replacements)

    def branches(self) -> tuple[str, ...]:
        """Return the conditions on free sizes that the model's own code asked about and took."""
        found: dict[str, None] = {}
        for guard in self.guards:
            asked = guard.sloc.framework_loc
            known = guard.expr.free_symbols <= self._public.keys()
            if isinstance(asked, FrameSummary) and is_user_file(asked.filename) and known:
                condition = PythonPrinter().doprint(guard.expr.xreplace(self._public))
                found[f"{condition} ({portable_path(asked.filename)}:{asked.lineno})"] = None
        return tuple(found)

    def expression(self, size: Any) -> int | float | bool | str:
        """Return a size as a number, or as Python text over the names of the symbols."""
        return expression(size, self._public)


def expression(size: Any, public: Mapping[Any, Any]) -> int | float | bool | str:
    """Return a size as a number, or as Python text with symbols replaced as ``public`` says."""
    if not isinstance(size, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        number: int | float | bool = size
        return number
    known = size.node.expr
    if known.is_number or known in (sympy.true, sympy.false):
        kind = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}[type(size)]
        value: int | float | bool = kind(known)
        return value
    if not known.free_symbols <= public.keys():
        raise TraceError(f"the size {known} depends on the data")
    text = str(PythonPrinter().doprint(known.xreplace(public)))
    _require_arithmetic(text)
    return text


@lru_cache(maxsize=4096)
def _require_arithmetic(text: str) -> None:
    """Refuse a size that plans and stages could not compute again."""
    try:
        evaluate(text, dict.fromkeys(symbols_in(text), 7))
    except DataError as error:
        raise TraceError(f"the size {text} is more than arithmetic", cause=error.message) from None
