"""Arguments that some calls lack and that an operation takes as None: attention masks."""

from __future__ import annotations

from collections.abc import Set

from autosplit.codegen.expressions import Attribute, Expr, HelperRef, Invoke, Text, Value, rebuild

_TAKES_NONE = {"scaled_dot_product_attention": (3, "attn_mask")}
"""Functions of ``F`` whose argument, by position and name, is None when it is left out."""


def without(expr: Expr, missing: Set[str]) -> Expr:
    """Return ``expr`` as it is recorded where values are None.

    Helper functions leave out their last arguments, functions of torch those that may be None.
    """

    def is_missing(part: Expr) -> bool:
        return isinstance(part, Value) and part.name in missing

    def change(part: Expr) -> Expr:
        match part:
            case Invoke(HelperRef() as helper, args, kwargs):
                kept = list(args)
                while kept and is_missing(kept[-1]):
                    kept.pop()
                return Invoke(helper, tuple(kept), kwargs)
            case Invoke(Attribute(Text("F"), name) as function, args, kwargs) if (
                name in _TAKES_NONE
            ):
                position, keyword = _TAKES_NONE[name]
                if len(args) == position + 1 and is_missing(args[position]):
                    args = args[:position]
                given = tuple((k, v) for k, v in kwargs if k != keyword or not is_missing(v))
                return Invoke(function, args, given)
        return part

    return rebuild(expr, change)
