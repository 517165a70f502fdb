"""A traced model as plain data: every operation, value, call and piece of state.

A ``Program`` says everything about a trace that planning and code generation need, without
torch: nodes name callables by their public path, sizes are expressions in named symbols, and
modules are known by their constructor. The tracer makes it; nothing changes it afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeAlias

from autosplit.checks import require, require_known, require_unique
from autosplit.sizes import evaluate

# ---------------------------------------------------------------- sizes and tensors

Dim: TypeAlias = int | str
"""A size: a number, or a Python expression over symbol names (``"batch"``, ``"2*seq"``)."""

DTYPE_BYTES: dict[str, int] = {
    "bool": 1,
    "uint8": 1,
    "int8": 1,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "int16": 2,
    "uint16": 2,
    "float16": 2,
    "bfloat16": 2,
    "int32": 4,
    "uint32": 4,
    "float32": 4,
    "int64": 8,
    "uint64": 8,
    "float64": 8,
    "complex64": 8,
    "complex128": 16,
}


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Shape and dtype of a tensor value.

    Parameters
    ----------
    shape
        Sizes; a string is an expression over the program's symbols.
    dtype
        Name without ``torch.`` ("float32").
    stride
        Strides in elements, expressions as for ``shape``.
    storage
        Number of the memory behind the tensor: views of one another share it.
    requires_grad
        Whether autograd follows the value in training.
    """

    shape: tuple[Dim, ...]
    dtype: str
    stride: tuple[Dim, ...] = ()
    storage: int = -1
    requires_grad: bool = False

    def __post_init__(self) -> None:
        require(self, self.dtype in DTYPE_BYTES, f"unknown dtype {self.dtype!r}")


@dataclass(frozen=True, slots=True)
class Symbol:
    """A size that may differ from run to run.

    Parameters
    ----------
    name
        Python identifier ("batch", "seq").
    example
        Its value while tracing.
    sources
        ``(input name, dimension)`` pairs from which it can be read.
    """

    name: str
    example: int
    sources: tuple[tuple[str, int], ...]


# ---------------------------------------------------------------- arguments


@dataclass(frozen=True, slots=True)
class Ref:
    """The value of another node."""

    name: str


@dataclass(frozen=True, slots=True)
class Size:
    """A number computed from sizes, as a Python expression over symbol names."""

    expression: str
    kind: Literal["int", "float", "bool"] = "int"


@dataclass(frozen=True, slots=True)
class Token:
    """A torch constant written by its public name.

    ``kind`` is "dtype", "layout", "memory_format" or "device"; a device's ``name`` is the one
    it had while tracing and code generation writes the running device in its place.
    """

    kind: Literal["dtype", "layout", "memory_format", "device"]
    name: str


@dataclass(frozen=True, slots=True)
class Slice:
    """``start:stop:step`` of a subscript."""

    start: Arg
    stop: Arg
    step: Arg


@dataclass(frozen=True, slots=True)
class Sequence:
    """A list or tuple argument."""

    kind: Literal["list", "tuple"]
    items: tuple[Arg, ...]


@dataclass(frozen=True, slots=True)
class Mapping:
    """A dict argument with string keys."""

    items: tuple[tuple[str, Arg], ...]


@dataclass(frozen=True, slots=True)
class EllipsisArg:
    """``...`` in a subscript."""


Arg: TypeAlias = (
    Ref | Size | Token | Slice | Sequence | Mapping | EllipsisArg | int | float | bool | str | None
)


def refs(arg: object) -> Iterator[str]:
    """Yield the node names an argument refers to, in order, repeats included."""
    if isinstance(arg, Ref):
        yield arg.name
    elif isinstance(arg, Slice):
        for part in (arg.start, arg.stop, arg.step):
            yield from refs(part)
    elif isinstance(arg, Sequence):
        for item in arg.items:
            yield from refs(item)
    elif isinstance(arg, Mapping):
        for _, item in arg.items:
            yield from refs(item)
    elif isinstance(arg, tuple):
        for item in arg:
            yield from refs(item)


# ---------------------------------------------------------------- structure of inputs and outputs


@dataclass(frozen=True, slots=True)
class Tree:
    """A nested Python structure whose leaves are values or constants.

    Parameters
    ----------
    kind
        "value" (a tensor named ``value``), "constant" (``value`` itself: None, bool, number,
        string), "tuple", "list", "dict", "namedtuple" or "object" (a dataclass or mapping
        class, rebuilt from its fields).
    value
        Name of the value, or the constant.
    type_name
        ``module:Class`` of a namedtuple or object.
    keys
        Keys of a dict, or fields of a namedtuple or object.
    items
        Children, in order.
    """

    kind: Literal["value", "constant", "tuple", "list", "dict", "namedtuple", "object"]
    value: str | int | float | bool | None = None
    type_name: str | None = None
    keys: tuple[str | int, ...] = ()
    items: tuple[Tree, ...] = ()

    def values(self) -> Iterator[str]:
        """Yield the value names at the leaves, left to right, repeats included."""
        if self.kind == "value":
            yield str(self.value)
        for item in self.items:
            yield from item.values()


@dataclass(frozen=True, slots=True)
class InputSpec:
    """One tensor input of the model.

    Parameters
    ----------
    name
        Node name of the input; also its name in routing tables.
    path
        Where it stands in ``(args, kwargs)``: ``("args", 0)``, ``("kwargs", "mask", "left")``.
    batch_dim
        Dimension that micro-batches divide, or None when every micro-batch sees it whole.
    """

    name: str
    path: tuple[str | int, ...]
    batch_dim: int | None


# ---------------------------------------------------------------- calls, modules, state


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a module or a Python function while tracing.

    A module called six times has six entries. Entry 0 is the call of the root module.

    Parameters
    ----------
    index
        Position in ``Program.calls``.
    kind
        "module" or "function".
    name
        Class name of the module, or name of the function.
    fqn
        Fully qualified name of the module ("" for the root); None for a function.
    parent
        Entry in which the call was made; None for the root.
    arg_names
        Parameter names of ``forward`` or the function, without ``self``.
    loop_variable
        Name that held the module in the caller ("block" in ``for block in self.h``).
    """

    index: int
    kind: Literal["module", "function"]
    name: str
    fqn: str | None
    parent: int | None
    arg_names: tuple[str, ...] = ()
    loop_variable: str | None = None


@dataclass(frozen=True, slots=True)
class Constructor:
    """How to build a leaf module: ``qualified(*args, **kwargs)``."""

    qualified: str
    args: tuple[Arg, ...] = ()
    kwargs: tuple[tuple[str, Arg], ...] = ()


@dataclass(frozen=True, slots=True)
class ModuleSpec:
    """One module of the model, under its first name.

    Parameters
    ----------
    fqn
        First name in registration order ("" for the root).
    class_name, qualified
        ``GPT2Block`` and ``transformers.models.gpt2.modeling_gpt2.GPT2Block``.
    leaf
        Whether the trace calls it as one operation.
    constructor
        How to rebuild it; set for leaves only.
    children
        Names of registered submodules, in order.
    state
        Names (without prefix) of its own parameters and buffers, in order.
    attributes
        Plain int, float, bool and str attributes, to give numbers back their names.
    aliases
        Further names of the same object.
    inplace, random, training_state
        Whether a call writes to its input, draws random numbers in training, or updates
        buffers in training (BatchNorm).
    training
        Mode while tracing.
    """

    fqn: str
    class_name: str
    qualified: str
    leaf: bool
    constructor: Constructor | None = None
    children: tuple[str, ...] = ()
    state: tuple[str, ...] = ()
    attributes: tuple[tuple[str, int | float | bool | str], ...] = ()
    aliases: tuple[str, ...] = ()
    inplace: bool = False
    random: bool = False
    training_state: bool = False
    training: bool = True


@dataclass(frozen=True, slots=True)
class StateSpec:
    """One parameter, buffer or captured constant, under its first name.

    Parameters
    ----------
    fqn
        First name in registration order; captured constants are ``_constant_0``, ….
    kind
        "parameter", "buffer" or "constant".
    shape, dtype
        Concrete shape and dtype name.
    requires_grad
        Whether it is trained.
    persistent
        Whether ``state_dict()`` holds it.
    aliases
        Further names of the same tensor (tied weights), in registration order.
    """

    fqn: str
    kind: Literal["parameter", "buffer", "constant"]
    shape: tuple[int, ...]
    dtype: str
    requires_grad: bool = False
    persistent: bool = True
    aliases: tuple[str, ...] = ()

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        count = 1
        for size in self.shape:
            count *= size
        return count * DTYPE_BYTES[self.dtype]


# ---------------------------------------------------------------- nodes


@dataclass(frozen=True, slots=True)
class Ambient:
    """Global state in force when an operation ran.

    Parameters
    ----------
    grad
        Whether gradients were recorded (False under ``no_grad``).
    inference
        Whether ``inference_mode`` was on.
    autocast
        ``(device type, dtype name)`` of each autocast that was on.
    """

    grad: bool = True
    inference: bool = False
    autocast: tuple[tuple[str, str], ...] = ()


PLAIN = Ambient()


@dataclass(frozen=True, slots=True)
class SourceName:
    """A local variable that held a node's value in one call's frame."""

    call: int
    name: str


@dataclass(frozen=True, slots=True)
class Node:
    """One recorded operation.

    Parameters
    ----------
    name
        Unique name, equal to the fx node's.
    op
        "input": a model input; "state": a parameter, buffer or constant (``target`` is the
        name it was reached by); "function": a call of ``target`` (public dotted path such as
        ``torch.nn.functional.linear``, ``torch.Tensor.view``, ``operator.getitem`` or, for an
        attribute read, ``torch.Tensor.mT.__get__``); "module": a call of the leaf module
        ``target``.
    args, kwargs
        Arguments, as plain data.
    value
        What it returns: a tensor, a tuple or list of tensors (None where an element is not a
        tensor), or None.
    calls
        Indices into ``Program.calls``: the calls it was made in, outermost (the root) first.
        For a "module" node the last entry is the call of the leaf itself.
    ambient
        Global state in force.
    mutates
        Earlier nodes whose memory the call wrote to, views included.
    writes_state
        Names of parameters and buffers the call wrote to.
    returns_argument
        Whether it returned its first argument itself (a no-op cast, an in-place call).
    random
        Whether it draws random numbers.
    source_names
        Local variables that held the value, per call.
    location
        ``path:line`` of the innermost frame of the user's code.
    """

    name: str
    op: Literal["input", "state", "function", "module"]
    target: str
    args: tuple[Arg, ...] = ()
    kwargs: tuple[tuple[str, Arg], ...] = ()
    value: TensorSpec | tuple[TensorSpec | None, ...] | None = None
    calls: tuple[int, ...] = (0,)
    ambient: Ambient = PLAIN
    mutates: tuple[str, ...] = ()
    writes_state: tuple[str, ...] = ()
    returns_argument: bool = False
    random: bool = False
    source_names: tuple[SourceName, ...] = ()
    location: str | None = None

    def inputs(self) -> tuple[str, ...]:
        """Return the names of the nodes it reads, in order, without repeats."""
        found = dict.fromkeys(refs(self.args))
        for _, arg in self.kwargs:
            found.update(dict.fromkeys(refs(arg)))
        return tuple(found)

    @property
    def tensors(self) -> tuple[TensorSpec, ...]:
        """Tensors it returns."""
        if isinstance(self.value, TensorSpec):
            return (self.value,)
        return tuple(spec for spec in self.value or () if spec is not None)


@dataclass(frozen=True)
class Program:
    """A traced model.

    ``nodes`` stand in the order in which they ran; inputs come first. An element of a tuple
    result is a node of its own with target ``operator.getitem``.
    """

    nodes: tuple[Node, ...]
    calls: tuple[Call, ...]
    modules: tuple[ModuleSpec, ...]
    states: tuple[StateSpec, ...]
    symbols: tuple[Symbol, ...]
    inputs: tuple[InputSpec, ...]
    input_tree: Tree
    output_tree: Tree
    training: bool = True
    tracer: str = "torch_level"
    warnings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require_unique(self, "node", (node.name for node in self.nodes))
        seen: set[str] = set()
        for node in self.nodes:
            require_known(self, f"argument of {node.name}", node.inputs(), seen)
            seen.add(node.name)
        require_known(self, "output", self.output_tree.values(), seen)
        require_known(self, "input", (spec.name for spec in self.inputs), seen)

    @cached_property
    def node(self) -> dict[str, Node]:
        """Nodes by name."""
        return {node.name: node for node in self.nodes}

    @cached_property
    def position(self) -> dict[str, int]:
        """Position of each node in running order."""
        return {node.name: index for index, node in enumerate(self.nodes)}

    @cached_property
    def users(self) -> dict[str, tuple[str, ...]]:
        """Names of the nodes that read each node, in running order."""
        found: dict[str, list[str]] = {node.name: [] for node in self.nodes}
        for node in self.nodes:
            for name in node.inputs():
                found[name].append(node.name)
        return {name: tuple(users) for name, users in found.items()}

    @cached_property
    def module(self) -> dict[str, ModuleSpec]:
        """Modules by every name they have."""
        return {name: spec for spec in self.modules for name in (spec.fqn, *spec.aliases)}

    @cached_property
    def state(self) -> dict[str, StateSpec]:
        """Parameters, buffers and constants by every name they have."""
        return {name: spec for spec in self.states for name in (spec.fqn, *spec.aliases)}

    @cached_property
    def symbol(self) -> dict[str, Symbol]:
        """Symbols by name."""
        return {symbol.name: symbol for symbol in self.symbols}

    @property
    def operations(self) -> tuple[Node, ...]:
        """Nodes that compute: function and module calls, in running order."""
        return tuple(node for node in self.nodes if node.op in ("function", "module"))

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the values the model returns, without repeats."""
        return tuple(dict.fromkeys(self.output_tree.values()))

    def states_of(self, node: Node) -> tuple[str, ...]:
        """Return first names of the parameters, buffers and constants a node uses itself."""
        found: dict[str, None] = {}
        if node.op == "module":
            prefix = self.module[node.target].fqn
            found.update(dict.fromkeys(self._under(prefix)))
        for name in node.inputs():
            source = self.node[name]
            if source.op == "state":
                found[self.state[source.target].fqn] = None
        return tuple(found)

    def _under(self, fqn: str) -> Iterator[str]:
        spec = self.module[fqn]
        head = f"{fqn}." if fqn else ""
        for name in spec.state:
            yield self.state[head + name].fqn
        for child in spec.children:
            yield from self._under(self.module[head + child].fqn)

    def evaluate(self, expression: Dim, sizes: dict[str, int] | None = None) -> int:
        """Return the number behind a size for given symbol values (default: the examples)."""
        if isinstance(expression, int):
            return expression
        values = {symbol.name: symbol.example for symbol in self.symbols}
        return int(evaluate(expression, {**values, **(sizes or {})}))

    def nbytes(self, spec: TensorSpec, sizes: dict[str, int] | None = None) -> int:
        """Return the bytes of a dense tensor of this spec."""
        count = 1
        for dim in spec.shape:
            count *= self.evaluate(dim, sizes)
        return count * DTYPE_BYTES[spec.dtype]
