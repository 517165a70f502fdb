"""What a program is made of: trees, inputs, calls, modules, state and nodes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from autosplit.program.arguments import DTYPE_BYTES, Arg, TensorSpec, refs

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


ORIGINAL = "original"
"""Constructor of a leaf that cannot be built alone: a stage takes it out of the whole model."""


@dataclass(frozen=True, slots=True)
class Constructor:
    """How to build a leaf module: ``qualified(*args, **kwargs)``.

    With ``ORIGINAL`` the keywords are settings that tell it from others of its class.
    """

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
class CallInterface:
    """What a call of a module took and returned; for those who call it as it is.

    Parameters
    ----------
    args, kwargs
        Arguments, as those of a node.
    result
        What it returned: a value, or a structure of values and constants.
    ambient
        Global state in force when it was called.
    """

    args: tuple[Arg, ...]
    kwargs: tuple[tuple[str, Arg], ...]
    result: Arg
    ambient: Ambient = PLAIN


@dataclass(frozen=True, slots=True)
class SourceName:
    """A local variable that held a node's value in one call's frame.

    A list ``xs`` of which the value was an element is called ``xs[]``.
    """

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
