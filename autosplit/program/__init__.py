"""A traced model as plain data: every operation, value, call and piece of state.

A ``Program`` says everything about a trace that planning and code generation need, without
torch: nodes name callables by their public path, sizes are expressions in named symbols, and
modules are known by their constructor. The tracer makes it; nothing changes it afterwards.
"""

from autosplit.program.arguments import (
    DTYPE_BYTES,
    Arg,
    Dim,
    EllipsisArg,
    Mapping,
    Ref,
    Sequence,
    Size,
    Slice,
    Symbol,
    TensorSpec,
    Token,
    TrainingSwitch,
    refs,
)
from autosplit.program.graph import Program
from autosplit.program.records import (
    ORIGINAL,
    PLAIN,
    Ambient,
    Call,
    CallInterface,
    Constructor,
    InputSpec,
    ModuleSpec,
    Node,
    SourceName,
    StateSpec,
    Tree,
)

__all__ = [
    "DTYPE_BYTES",
    "ORIGINAL",
    "PLAIN",
    "Ambient",
    "Arg",
    "Call",
    "CallInterface",
    "Constructor",
    "Dim",
    "EllipsisArg",
    "InputSpec",
    "Mapping",
    "ModuleSpec",
    "Node",
    "Program",
    "Ref",
    "Sequence",
    "Size",
    "Slice",
    "SourceName",
    "StateSpec",
    "Symbol",
    "TensorSpec",
    "Token",
    "TrainingSwitch",
    "Tree",
    "refs",
]
