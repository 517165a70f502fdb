"""One operation of the program as an expression, spelled the way people write torch."""

from __future__ import annotations

import ast
import keyword
import math
import re
from dataclasses import dataclass

from autosplit.codegen.defaults import COMMON_DEFAULTS, DEFAULTS
from autosplit.codegen.errors import CodegenError
from autosplit.codegen.expressions import (
    NONE,
    Attribute,
    Binary,
    Conditional,
    DictDisplay,
    Display,
    Expr,
    Invoke,
    ModuleRef,
    Number,
    Range,
    Subscript,
    Text,
    Unary,
    Value,
    dotted,
)
from autosplit.codegen.spelling import quote, show
from autosplit.program import (
    Arg,
    EllipsisArg,
    Mapping,
    Node,
    Ref,
    Sequence,
    Size,
    Slice,
    Token,
    TrainingSwitch,
)

DEVICE = "$device"
TRAINING = "$training"
SYMBOL = "$symbol:"

_INFIX: dict[str, str] = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "div": "/",
    "truediv": "/",
    "true_divide": "/",
    "floordiv": "//",
    "floor_divide": "//",
    "mod": "%",
    "remainder": "%",
    "pow": "**",
    "matmul": "@",
    "and": "&",
    "bitwise_and": "&",
    "or": "|",
    "bitwise_or": "|",
    "xor": "^",
    "bitwise_xor": "^",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
    "eq": "==",
    "ne": "!=",
}
_REFLECTED = {f"r{name}": op for name, op in _INFIX.items()}
_AUGMENTED: dict[str, str] = {
    "iadd": "add_",
    "isub": "sub_",
    "imul": "mul_",
    "itruediv": "div_",
    "idiv": "div_",
    "ifloordiv": "floor_divide_",
    "imod": "remainder_",
    "ipow": "pow_",
    "iand": "bitwise_and_",
    "ior": "bitwise_or_",
    "ixor": "bitwise_xor_",
}
_UNARY: dict[str, str] = {"neg": "-", "negative": "-", "invert": "~", "bitwise_not": "~"}
_SPREAD = {"view", "reshape", "expand", "permute", "repeat", "new_zeros", "new_ones", "flip"}
_SINGLETONS = (NONE, Text("True"), Text("False"))
_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)


_MEANINGS = {
    ("split", 1): "size",
    ("unflatten", 2): "size",
    ("chunk", 1): "chunks",
    ("mul", 1): "scale",
    ("div", 1): "scale",
    ("truediv", 1): "scale",
    ("dropout", 1): "p",
}


@dataclass(frozen=True, slots=True)
class Operation:
    """A node as code: ``place = expr`` when it assigns into something, else just ``expr``."""

    expr: Expr
    place: Expr | None = None


def operation(node: Node) -> Operation:
    """Return the code of one operation.

    Raises
    ------
    CodegenError
        If the operation has no spelling.
    """
    args = tuple(argument(arg, _meaning(node, at)) for at, arg in enumerate(node.args))
    kwargs = tuple((_keyword(key, node), argument(arg, key)) for key, arg in node.kwargs)
    if node.op == "module":
        return Operation(Invoke(ModuleRef(node.target), args, kwargs))
    path = _checked_path(node)
    owner, _, name = path.rpartition(".")
    if name == "__get__":
        return Operation(Attribute(args[0], owner.rpartition(".")[2]))
    if name == "__set__":
        return Operation(args[1], place=Attribute(args[0], owner.rpartition(".")[2]))
    if name in ("getitem", "__getitem__"):
        return Operation(_subscript(args[0], node.args[1]))
    if name in ("setitem", "__setitem__"):
        return Operation(args[2], place=_subscript(args[0], node.args[1]))
    plain = name.strip("_") if name.startswith("__") or owner == "operator" else name
    if plain in ("eq", "ne") and any(arg in _SINGLETONS for arg in args):
        return Operation(Invoke(Attribute(args[0], plain), args[1:], kwargs))
    operator = None if kwargs else _operator(plain, owner, args)
    if operator is not None:
        return Operation(operator)
    if plain in _AUGMENTED:
        return Operation(Invoke(Attribute(args[0], _AUGMENTED[plain]), args[1:], kwargs))
    kwargs = _without_defaults(name, kwargs)
    return Operation(_invoke(owner, name, node, args, kwargs))


def _meaning(node: Node, position: int) -> str:
    """Return what the number at a position of a call is, as a keyword would say it."""
    name = node.target.rpartition(".")[2]
    if node.op != "function" or position == 0:
        return ""
    if name in ("view", "reshape"):
        return "size"
    return _MEANINGS.get((name, position), "")


# ---------------------------------------------------------------- calls


def _operator(name: str, owner: str, args: tuple[Expr, ...]) -> Expr | None:
    if owner not in ("torch", "torch.Tensor", "operator"):
        return None
    if len(args) == 2 and name in _INFIX:
        return Binary(_INFIX[name], *args)
    if len(args) == 2 and name in _REFLECTED:
        return Binary(_REFLECTED[name], args[1], args[0])
    if len(args) == 1 and name in _UNARY:
        return Unary("~" if _UNARY[name] == "~" else "-", args[0])
    return None


def _invoke(
    owner: str, name: str, node: Node, args: tuple[Expr, ...], kwargs: tuple[tuple[str, Expr], ...]
) -> Expr:
    if owner == "torch.Tensor":
        rest = args[1:]
        if name in _SPREAD and len(rest) == 1 and isinstance(rest[0], Display) and rest[0].items:
            rest = rest[0].items
        return Invoke(Attribute(args[0], name), rest, kwargs)
    if owner in ("torch.nn.functional", "torch._C._nn"):
        return Invoke(Attribute(Text("F"), name), args, kwargs)
    if owner == "torch._VF":
        owner = "torch"
    return Invoke(dotted(f"{owner}.{name}"), args, kwargs)


def _without_defaults(
    name: str, kwargs: tuple[tuple[str, Expr], ...]
) -> tuple[tuple[str, Expr], ...]:
    """Drop what torch assumes anyway; models pass much of it by habit."""
    own = DEFAULTS.get(name)
    if own is None:
        return kwargs
    known = COMMON_DEFAULTS | own
    return tuple(
        (key, value)
        for key, value in kwargs
        if not isinstance(value, Text | Number) or show(value) != known.get(key)
    )


def _checked_path(node: Node) -> str:
    path = node.target
    if not _PATH.fullmatch(path) or any(keyword.iskeyword(part) for part in path.split(".")):
        raise CodegenError(
            f"operation {node.name!r} calls {path!r}, which has no public name",
            hint=node.location,
        )
    return path


def _keyword(key: str, node: Node) -> str:
    if not key.isidentifier() or keyword.iskeyword(key):
        raise CodegenError(f"operation {node.name!r} has the keyword argument {key!r}")
    return key


# ---------------------------------------------------------------- arguments


def argument(arg: Arg, hint: str = "") -> Expr:
    """Return an argument as an expression; ``hint`` names a number that varies."""
    match arg:
        case Ref(name):
            return Value(name)
        case Size(expression):
            return size(expression)
        case Token(kind="device"):
            return Value(DEVICE)
        case Token(name=name):
            return dotted(_token(name))
        case TrainingSwitch(train, evaluate):
            return _switch(train, evaluate, hint)
        case Slice(start, stop, step):
            return Invoke(Text("slice"), tuple(argument(part) for part in (start, stop, step)))
        case Sequence(kind, items):
            return Display(kind, tuple(argument(item, hint) for item in items))
        case Mapping(items):
            return _dict(items)
        case EllipsisArg():
            return Text("...")
    return constant(arg, hint)


def constant(value: int | float | bool | str | None, hint: str = "") -> Expr:
    """Return a literal; a number may later become a constructor argument."""
    if value is None or isinstance(value, bool):
        return Text(str(value))
    if isinstance(value, str):
        return Text(quote(value))
    if isinstance(value, float) and not math.isfinite(value):
        return Invoke(Text("float"), (Text(quote(str(value))),))
    return Number(value, hint)


def _dict(items: tuple[tuple[str, Arg], ...]) -> Expr:
    return DictDisplay(tuple((Text(quote(key)), argument(item, key)) for key, item in items))


def _switch(train: object, evaluate: object, hint: str) -> Expr:
    if train is True and evaluate is False:
        return Value(TRAINING)
    if train is False and evaluate is True:
        return Unary("not ", Value(TRAINING))
    return Conditional(_plain(train, hint), Value(TRAINING), _plain(evaluate, hint))


def _plain(value: object, hint: str) -> Expr:
    if not isinstance(value, int | float | bool | None):
        raise CodegenError(f"{value!r} cannot depend on the training mode")
    return constant(value, hint)


def _token(name: str) -> str:
    path = name if name.startswith("torch.") else f"torch.{name}"
    if not _PATH.fullmatch(path):
        raise CodegenError(f"{name!r} is not a constant of torch")
    return path


def _subscript(base: Expr, index: Arg) -> Expr:
    if isinstance(index, Sequence) and index.kind == "tuple" and index.items:
        return Subscript(base, tuple(map(_item, index.items)))
    return Subscript(base, (_item(index),))


def _item(index: Arg) -> Expr:
    if not isinstance(index, Slice):
        return argument(index)
    start = None if index.start is None or index.start == 0 else argument(index.start)
    stop, step = (None if part is None else argument(part) for part in (index.stop, index.step))
    return Range(start, stop, step)


# ---------------------------------------------------------------- sizes

_ARITHMETIC: dict[type[ast.operator], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.FloorDiv: "//",
    ast.Div: "/",
    ast.Mod: "%",
    ast.Pow: "**",
}
_COMPARISON: dict[type[ast.cmpop], str] = {
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
}
_FUNCTIONS = {"max", "min", "abs", "int", "float"}
_MATH = {"ceil", "floor", "sqrt"}


def size(expression: str) -> Expr:
    """Return a size expression of the program as code over the symbols of the scope."""
    try:
        return _size(ast.parse(expression, mode="eval").body)
    except SyntaxError as error:
        raise CodegenError(f"{expression!r} is not a size", cause=str(error)) from None


def _size(node: ast.expr) -> Expr:
    match node:
        case ast.Constant(value=int() | float() | bool() as value):
            return constant(value)
        case ast.Name(id=name):
            return Value(SYMBOL + name)
        case ast.BinOp() if type(node.op) in _ARITHMETIC:
            return Binary(_ARITHMETIC[type(node.op)], _size(node.left), _size(node.right))
        case ast.UnaryOp(op=ast.USub()):
            return Unary("-", _size(node.operand))
        case ast.UnaryOp(op=ast.Not()):
            return Unary("not ", _size(node.operand))
        case ast.Compare(ops=[op]) if type(op) in _COMPARISON:
            return Binary(_COMPARISON[type(op)], _size(node.left), _size(node.comparators[0]))
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), keywords=[]):
            if name in _FUNCTIONS | _MATH:
                head = dotted(f"math.{name}") if name in _MATH else Text(name)
                return Invoke(head, tuple(map(_size, node.args)))
    raise CodegenError(f"{ast.unparse(node)!r} is not a size")
