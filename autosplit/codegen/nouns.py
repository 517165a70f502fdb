"""Names for values that have none in the model's source: what the operation is called."""

from __future__ import annotations

import builtins
import keyword
import re

from autosplit.codegen.lists import element, is_list
from autosplit.codegen.operators import DEVICE, SYMBOL, TRAINING
from autosplit.codegen.scopes import Scope, StageGraph
from autosplit.program import Node

RESERVED = {"self", "torch", "nn", "F", "math", "l", "O", "I", "_"} | {
    "abs",
    "float",
    "getattr",
    "int",
    "max",
    "min",
    "range",
    "slice",
    "str",
    "sum",
    "super",
    "zip",
}

_ELEMENTS = {
    **dict.fromkeys(("topk", "sort", "kthvalue", "median", "mode"), ("values", "indices")),
    **dict.fromkeys(("max", "min", "cummax", "cummin"), ("values", "indices")),
    "std_mean": ("std", "mean"),
    "var_mean": ("var", "mean"),
    "LSTM": ("output", "state"),
    "GRU": ("output", "state"),
}
"""What torch calls the elements of a tuple."""

_NOUNS = {
    "getitem": "part",
    "get": "value",
    "iadd": "total",
    "add": "total",
    "sub": "difference",
    "mul": "scaled",
    "matmul": "product",
    "cat": "joined",
    "softmax": "weights",
    "scaled_dot_product_attention": "attended",
    "addmm": "projected",
    "setitem": "updated",
}


def quantity(value: str) -> str:
    """Return the name of a ``$`` quantity."""
    if value == DEVICE:
        return "device"
    if value == TRAINING:
        return "training"
    return value.removeprefix(SYMBOL)


def maker_of(scope: Scope, value: str) -> Scope | None:
    """Return the inner scope that returns a value."""
    return next((i for i in scope.items if isinstance(i, Scope) and value in i.outputs), None)


def noun(graph: StageGraph, scope: Scope, value: str, wished: list[str]) -> str:
    """Return a name from what the operation is called, or from ``wished`` where a call made it."""
    node = graph.source(value)
    if is_list(value):
        return f"{noun(graph, scope, element(value), wished)}s"
    if node is None:
        return quantity(value) if value.startswith("$") else "value"
    maker = maker_of(scope, value)
    if maker is not None and len(maker.outputs) > 1:
        return wished[0] if wished else maker.variables[value]
    if maker is not None:
        return _word(maker.call.name if maker.kind == "function" else _last_word(maker.fqn))
    if node.op != "function":
        return _word(_last_word(node.target))
    parts = node.target.split(".")
    word = parts[-2] if parts[-1] in ("__get__", "__set__") else parts[-1].strip("_")
    if word == "getitem":
        word = _element(graph, node) or word
    return _word(_NOUNS.get(word, word))


def _element(graph: StageGraph, node: Node) -> str | None:
    """Return what torch calls an element of a tuple."""
    maker = graph.source(node.inputs()[0]) if node.inputs() else None
    if maker is None or not isinstance(maker.value, tuple):
        return None
    name = maker.target.rpartition(".")[2]
    if maker.op == "module":
        name = graph.program.module[maker.target].class_name
    index = node.args[1]
    known = _ELEMENTS.get(name, ())
    return known[index] if isinstance(index, int) and 0 <= index < len(known) else None


def _last_word(fqn: str) -> str:
    """Return the last part of a module's name that is not an index."""
    words = [part for part in fqn.split(".") if not part.isdigit()]
    return words[-1] if words else "x"


def _word(text: str) -> str:
    word = re.sub(r"\W", "_", text, flags=re.ASCII).strip("_").lower()
    if not word or word[0].isdigit():
        word = f"value_{word}".rstrip("_")
    if keyword.iskeyword(word) or word in RESERVED or hasattr(builtins, word):
        word += "_"
    return word


def singular(word: str) -> str:
    """Return a name for one element of a list of this name."""
    word = re.sub(r"\W", "_", word, flags=re.ASCII).lower()
    if not word.isidentifier():
        return "layer"
    if word.endswith("s") and len(word) > 2:
        return word[:-1]
    return {"h": "block"}.get(word, f"{word}_item")
