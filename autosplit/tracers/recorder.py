"""The recorder: a torch function mode that writes every outermost torch call into a graph."""

from __future__ import annotations

import operator
import sys
from types import FrameType
from typing import Any, NoReturn

import torch
from torch import fx, nn
from torch.overrides import TorchFunctionMode

from autosplit.errors import TraceError
from autosplit.program import SourceName
from autosplit.tracers.callables import public_name, result_name
from autosplit.tracers.effects import ambient_state, silently_written, storage_key, versions
from autosplit.tracers.fake import FakeModel
from autosplit.tracers.frames import (
    RETURNED,
    FrameReader,
    local_tensors,
    place,
    portable_path,
    receivers,
    variable_of,
)
from autosplit.tracers.leaves import updates_state, without_counting
from autosplit.tracers.randomness import draws_random_numbers
from autosplit.tracers.recording import CallRecord, Recording, plain_number
from autosplit.tracers.recurrent import fake_recurrent
from autosplit.tracers.refusals import ModelError, refuse_call

_UNPACK = torch.Tensor.__iter__
_VALUES = {"item", "tolist", "numpy", "__bool__", "__int__", "__float__", "__index__", "__array__"}


class Recorder(TorchFunctionMode):
    """Writes what the forward does into a recording.

    Parameters
    ----------
    recording
        Filled by this object.
    fake
        The model with fake state in place.
    read_frames
        Whether to look at the running Python for names, helper functions and lines; without
        it the trace is the same but for these.
    """

    def __init__(self, recording: Recording, fake: FakeModel, *, read_frames: bool = True) -> None:
        super().__init__()
        self.recording = recording
        self.fake = fake
        self.quiet = 0
        self.training_was_read = False
        self.checkpointed: tuple[str, ...] = ()
        self._stack: list[int] = []
        self._producer: dict[int, fx.Node] = {}
        self._storages: dict[int, list[fx.Node]] = {}
        self._alive: list[Any] = []
        self._noted: set[tuple[fx.Node, int, str]] = set()
        self._frames = (
            FrameReader(
                self.call_module.__func__.__code__,  # type: ignore[attr-defined]
                self._new_function,
                self._note_arguments,
                lambda index: recording.calls[index].module,
            )
            if read_frames
            else None
        )
        self._current: Any = None

    # ------------------------------------------------------------ inputs and outputs

    def add_input(self, name: str, value: torch.Tensor) -> fx.Node:
        """Record an input of the model."""
        node = self.recording.graph.placeholder(name)
        node.meta["value"] = value
        self._bind(node, value)
        return node

    def node_of(self, value: torch.Tensor) -> fx.Node:
        """Return the node that made a tensor; state and constants get a node of their own."""
        found = self._producer.get(id(value))
        if found is not None:
            return found
        name = self.fake.name_of(value)
        if name is None:
            name = self.recording.capture(value)
        node = self.recording.graph.get_attr(name)
        node.meta["value"] = value
        self._bind(node, value)
        return node

    def known(self, value: torch.Tensor) -> fx.Node | None:
        """Return the node that made a tensor, None where nothing of it was recorded yet."""
        return self._producer.get(id(value))

    def innermost(self) -> str | None:
        """Return the name of the module whose forward is running."""
        return self.recording.calls[self._stack[-1]].fqn if self._stack else None

    def finish(self) -> None:
        """Let go of the frames that were looked at."""
        if self._frames is not None:
            self.checkpointed = self._frames.checkpointed(self.fake.fqn_of)
            self._frames.forget()

    # ------------------------------------------------------------ what torch calls

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if self.quiet:
            return func(*args, **kwargs)
        if func is _UNPACK:
            with self:
                return iter(args[0].unbind(0))
        self._current = func
        refuse_call(func, args, self.fake.name_of)
        before = versions((args, kwargs))
        out = func(*args, **kwargs)
        written = [tensor for tensor, version in before if tensor._version != version]
        if written or _has_tensor(out):
            self._record_function(func, args, kwargs, out, written)
        return out

    def call_module(self, original: Any, module: nn.Module, args: Any, kwargs: Any) -> Any:
        """Stand around a call of ``module``: record a leaf, or follow it into its forward."""
        fqn = self.fake.fqn_of(module)
        if self.quiet or fqn is None:
            if not self.quiet:
                self._refuse_foreign(module)
            return original(module, *args, **kwargs)
        path, user = self._path(sys._getframe(1))
        self._note_locals(user)
        index = self.recording.add_call(
            CallRecord(
                "module",
                type(module).__name__,
                fqn,
                path[-1] if path else None,
                loop_variable=_loop_variable(user, module),
                module=module,
            )
        )
        self._stack.append(index)
        try:
            if self.fake.is_leaf(module):
                out = self._call_leaf(original, module, fqn, args, kwargs, (*path, index), user)
            else:
                out = original(module, *args, **kwargs)
        finally:
            self._stack.pop()
        if isinstance(out, torch.Tensor) or _has_tensor(out):
            self._note_receivers(user, out)
        return out

    def _call_leaf(
        self,
        original: Any,
        module: nn.Module,
        fqn: str,
        args: Any,
        kwargs: Any,
        path: tuple[int, ...],
        user: list[tuple[FrameType, int]],
    ) -> Any:
        before = versions((args, kwargs))
        state = [
            (f"{fqn}.{name}" if fqn else name, tensor, tensor._version)
            for name, tensor in module.named_buffers()
        ]
        self.quiet += 1
        try:
            out = None
            if isinstance(module, nn.RNNBase):
                out = fake_recurrent(module, args, kwargs)
            if out is None:
                with without_counting(module):
                    out = original(module, *args, **kwargs)
        finally:
            self.quiet -= 1
        node = self._record("call_module", fqn, args, kwargs, out, path, user)
        self._mark_writes(
            node, [tensor for tensor, version in before if tensor._version != version]
        )
        silent = module.training and any(map(updates_state, module.modules()))
        changed = [name for name, tensor, version in state if silent or tensor._version != version]
        node.meta["writes_state"] = [self.fake.first_name(name) for name in changed]
        return out

    # ------------------------------------------------------------ recording

    def _record_function(
        self, func: Any, args: Any, kwargs: Any, out: Any, written: list[torch.Tensor]
    ) -> None:
        if public_name(func) is None:
            raise TraceError(
                f"cannot record a call of {getattr(func, '__qualname__', func)!r}",
                cause=place(),
                hint="it has no public name in torch; use the public function instead",
            )
        path, user = self._path(sys._getframe(2))
        self._note_locals(user)
        node = self._record("call_function", func, args, kwargs, out, path, user)
        self._mark_writes(node, [*written, *silently_written(func, args, kwargs)])
        self._note_receivers(user, out)

    def _record(
        self,
        op: str,
        target: Any,
        args: Any,
        kwargs: Any,
        out: Any,
        path: tuple[int, ...],
        user: list[tuple[FrameType, int]],
    ) -> fx.Node:
        graph = self.recording.graph
        node = graph.create_node(
            op,
            target,
            self._arguments(args),
            self._arguments(kwargs),
            name=result_name(target) if op == "call_function" else None,
        )
        node.meta.update(
            value=out,
            calls=path,
            ambient=ambient_state(),
            mutates=[],
            writes_state=[],
            returns_argument=bool(args) and out is args[0],
            random=op == "call_function" and draws_random_numbers(target, args, kwargs),
            names=[],
            location=_location(user),
        )
        self._bind(node, out)
        return node

    def _bind(self, node: fx.Node, out: Any) -> None:
        """Remember which node made each tensor; an element of a tuple gets a node of its own."""
        self._alive.append(out)
        if isinstance(out, torch.Tensor):
            self._producer[id(out)] = node
            users = self._storages.setdefault(storage_key(out), [])
            users.append(node)
        elif isinstance(out, (tuple, list)):
            for position, item in enumerate(out):
                if not _has_tensor(item):
                    continue
                element = self.recording.graph.call_function(operator.getitem, (node, position))
                element.meta.update(node.meta)
                element.meta.update(value=item, names=[], mutates=[], writes_state=[])
                element.meta.update(returns_argument=False, random=False)
                self._bind(element, item)

    def _mark_writes(self, node: fx.Node, written: list[torch.Tensor]) -> None:
        """Note whose memory a call wrote to: every earlier value in that storage."""
        for tensor in written:
            for user in self._storages.get(storage_key(tensor), []):
                if user is node or user in node.meta["mutates"]:
                    continue
                if user.op == "get_attr":
                    self._mark_state_write(node, user)
                elif node not in _chain(user):
                    node.meta["mutates"].append(user)

    def _mark_state_write(self, node: fx.Node, state: fx.Node) -> None:
        name = str(state.target)
        if name in self.recording.constants:
            raise ModelError(
                "the forward writes to a tensor that is no buffer",
                cause=place(),
                hint="register it: self.register_buffer(name, tensor, persistent=False)",
            )
        if name not in node.meta["writes_state"]:
            node.meta["writes_state"].append(name)

    def _arguments(self, value: Any) -> Any:
        """Return arguments with tensors replaced by their nodes."""
        if isinstance(value, torch.Tensor):
            return self.node_of(value)
        if isinstance(value, (tuple, list)):
            items = [self._arguments(item) for item in value]
            return items if isinstance(value, list) else tuple(items)
        if isinstance(value, dict):
            return {key: self._arguments(item) for key, item in value.items()}
        if isinstance(value, slice):
            return slice(*(self._arguments(v) for v in (value.start, value.stop, value.step)))
        if isinstance(value, range):
            return list(value)
        return plain_number(value)

    # ------------------------------------------------------------ names

    def _path(self, caller: FrameType) -> tuple[tuple[int, ...], list[tuple[FrameType, int]]]:
        """Return the calls around an operation and the user's frames with theirs."""
        if self._frames is None:
            return tuple(self._stack), []
        return self._frames.path(caller, self._stack)

    def _new_function(self, name: str, arg_names: tuple[str, ...], parent: int) -> int:
        return self.recording.add_call(CallRecord("function", name, None, parent, arg_names))

    def _note_arguments(self, index: int, names: tuple[str, ...]) -> None:
        self.recording.calls[index].arg_names = names

    def _note_locals(self, user: list[tuple[FrameType, int]]) -> None:
        if user:
            frame, call = user[-1]
            for name, tensor in local_tensors(frame):
                self._note(tensor, call, name)

    def _note_receivers(self, user: list[tuple[FrameType, int]], out: Any) -> None:
        """Note the variable that the running statement puts the result into."""
        for frame, call in reversed(user):
            target = receivers(frame)
            if target is RETURNED:
                continue
            if isinstance(target, str) and isinstance(out, torch.Tensor):
                self._note(out, call, target)
            elif isinstance(target, tuple) and isinstance(out, (tuple, list)):
                for name, item in zip(target, out, strict=False):
                    if isinstance(name, str) and isinstance(item, torch.Tensor):
                        self._note(item, call, name)
            return

    def _note(self, tensor: torch.Tensor, call: int, name: str) -> None:
        node = self._producer.get(id(tensor))
        if node is not None and (node, call, name) not in self._noted:
            self._noted.add((node, call, name))
            node.meta.setdefault("names", []).append(SourceName(call, name))

    # ------------------------------------------------------------ refusals

    def _refuse_foreign(self, module: nn.Module) -> None:
        """Refuse a module with parameters of its own; a slice of a Sequential has none."""
        if any(self.fake.name_of(parameter) is None for parameter in module.parameters()):
            raise ModelError(
                f"the forward calls a {type(module).__name__} that is not part of the model",
                cause=place(),
                hint="assign it to an attribute in __init__ (lists: nn.ModuleList), so that its "
                "parameters belong to the model",
            )

    def refuse_value(self) -> NoReturn:
        """Refuse a forward that asks for a value only the data can tell."""
        name = getattr(self._current, "__name__", "")
        reads = name in _VALUES
        raise ModelError(
            "the forward branches on or computes with values read out of a tensor"
            if reads
            else f"the size of the result of {name or 'an operation'} depends on the data",
            cause=place(),
            hint="write it with torch.where, masks or a fixed size, so that every batch takes the "
            "same path; or keep that part out of the model",
        )


def _chain(node: fx.Node) -> list[fx.Node]:
    """Return a tuple element's node and the nodes it is taken from."""
    found = [node]
    while found[-1].op == "call_function" and found[-1].target is operator.getitem:
        found.append(found[-1].args[0])  # type: ignore[arg-type]
    return found


def _has_tensor(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return True
    if isinstance(value, (tuple, list)):
        return any(_has_tensor(item) for item in value)
    return False


def _location(user: list[tuple[FrameType, int]]) -> str | None:
    """Return ``file:line`` of the innermost user code inside the model, whoever calls it."""
    if not user:
        return None
    frame, _ = user[-1]
    return f"{portable_path(frame.f_code.co_filename)}:{frame.f_lineno}"


def _loop_variable(user: list[tuple[FrameType, int]], module: nn.Module) -> str | None:
    for frame, _ in reversed(user):
        if frame.f_code.co_name != "__call__":
            return variable_of(frame, module)
    return None
