"""What only the running Python knows: helper functions, variable names, lines of user code.

Reads frames and the bytecode that follows a call, for CPython 3.10 to 3.14. A trace is whole
without it: names and helper functions are then missing, nothing else.
"""

from __future__ import annotations

import dis
import inspect
import os
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Sequence
from functools import cache, lru_cache, partial
from types import CodeType, FrameType
from typing import Any

import torch

from autosplit.errors import TraceError

_TORCH = os.path.dirname(torch.__file__) + os.sep
_OWN = os.path.dirname(os.path.abspath(__file__)) + os.sep
_STDLIB = sysconfig.get_paths()["stdlib"] + os.sep
_TRANSFORMER = os.path.join(_TORCH, "nn", "modules", "transformer.py")
_CHECKPOINT = os.path.join(_TORCH, "utils", "checkpoint.py")
_SITE = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")

RETURNED = object()
"""The running instruction's result is what its function returns."""

Name = str | None


@cache
def is_user_file(filename: str) -> bool:
    """Tell whether code in ``filename`` belongs to the model rather than to the machinery."""
    if filename.startswith("<") or filename.startswith(_OWN):
        return False
    if filename.startswith(_TORCH):
        return filename == _TRANSFORMER
    return not filename.startswith(_STDLIB) or any(site in filename for site in _SITE)


def user_frames(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield the frames of user code, innermost first."""
    while frame is not None:
        if is_user_file(frame.f_code.co_filename):
            yield frame
        frame = frame.f_back


def place(frame: FrameType | None = None) -> str | None:
    """Return ``file:line`` of the innermost user code, for a message."""
    for found in user_frames(frame or sys._getframe(1)):
        return f"{found.f_code.co_filename}:{found.f_lineno}"
    return None


@lru_cache(maxsize=4096)
def portable_path(filename: str) -> str:
    """Return a file's path below the folder it is imported from, equal on every machine."""
    roots = [
        root for root in sys.path if root and filename.startswith(root.rstrip(os.sep) + os.sep)
    ]
    if not roots:
        return os.path.basename(filename)
    root = max(roots, key=len).rstrip(os.sep)
    return filename[len(root) + 1 :].replace(os.sep, "/")


def failure(error: Exception, message: str) -> TraceError:
    """Return a trace error that names the line of user code at which ``error`` arose."""
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if is_user_file(frame.filename)
    ]
    said = str(error).strip().split("\n")[0]
    cause = f"{type(error).__name__}: {said}"
    if frames:
        cause = f"{frames[-1].filename}:{frames[-1].lineno}: {cause}"
    return TraceError(message, cause=cause)


class FrameReader:
    """Follows the Python calls between the tracer and each operation.

    Parameters
    ----------
    call_code
        Code of the function that stands around each module call: the k-th of its frames
        belongs to the k-th entry of ``module_calls``.
    new_function
        Makes a call entry: ``new_function(name, arg_names, parent) -> index``.
    note_arguments
        Told the parameter names of a module's forward: ``note_arguments(index, names)``.
    modules
        Live module of a call entry, or None for a function.
    """

    def __init__(
        self,
        call_code: CodeType,
        new_function: Callable[[str, tuple[str, ...], int], int],
        note_arguments: Callable[[int, tuple[str, ...]], None],
        modules: Callable[[int], Any],
    ) -> None:
        self._call_code = call_code
        self._new_function = new_function
        self._note_arguments = note_arguments
        self._modules = modules
        self._entries: dict[FrameType, int | None] = {}
        self._checkpoints: dict[FrameType, Any] = {}

    def forget(self) -> None:
        """Let go of the frames that were seen."""
        self._entries.clear()
        self._checkpoints.clear()

    def checkpointed(self, fqn_of: Callable[[Any], str | None]) -> tuple[str, ...]:
        """Return what ran under ``torch.utils.checkpoint``: modules, or names of functions."""
        names = (_region(function, fqn_of) for function in self._checkpoints.values())
        return tuple(dict.fromkeys(names))

    def path(
        self, frame: FrameType, module_calls: Sequence[int]
    ) -> tuple[tuple[int, ...], list[tuple[FrameType, int]]]:
        """Return the calls around ``frame``, outermost first, and the user frames with theirs."""
        path: list[int] = []
        user: list[tuple[FrameType, int]] = []
        modules = iter(module_calls)
        for found in reversed(self._relevant(frame, len(module_calls))):
            if found.f_code is self._call_code:
                path.append(next(modules))
                continue
            if found not in self._entries:
                self._entries[found] = self._entry(found, path)
            entry = self._entries[found]
            if entry is None:
                user.append((found, path[-1]))
                continue
            if entry in path:
                del path[path.index(entry) + 1 :]
            else:
                path.append(entry)
            user.append((found, entry))
        return tuple(path), user

    def _relevant(self, frame: FrameType | None, depth: int) -> list[FrameType]:
        """Return frames of user code and module calls, innermost first, up to the root's."""
        found: list[FrameType] = []
        while frame is not None and depth:
            if frame.f_code is self._call_code:
                depth -= 1
                found.append(frame)
            elif is_user_file(frame.f_code.co_filename):
                found.append(frame)
            elif _runs_checkpoint(frame.f_code) and frame not in self._checkpoints:
                self._checkpoints[frame] = frame.f_locals.get("function")
            frame = frame.f_back
        return found

    def _entry(self, frame: FrameType, path: list[int]) -> int | None:
        """Return the call a frame stands for; None for code that is no call of its own."""
        code = frame.f_code
        if code.co_name.startswith("<") or code.co_name == "__call__" or _forwards(code):
            return None
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        if code.co_name == "forward" and names:
            owner = frame.f_locals.get(names[0])
            for index in reversed(path):
                module = self._modules(index)
                if module is not None:
                    if module is owner:
                        self._note_arguments(index, names[1:])
                        return index
                    break
        return self._new_function(code.co_name, names, path[-1])


def local_tensors(frame: FrameType) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors in a frame's variables.

    Those in dicts have their keys for names, those in a list ``xs`` the name ``xs[]``.
    """
    for name, value in list(frame.f_locals.items()):
        if not _is_name(name):
            continue
        if isinstance(value, torch.Tensor):
            yield name, value
        elif type(value) is dict:
            for key, item in list(value.items()):
                if isinstance(key, str) and key.isidentifier() and isinstance(item, torch.Tensor):
                    yield key, item
        elif type(value) is list:
            for item in list(value):
                if isinstance(item, torch.Tensor):
                    yield f"{name}[]", item


def variable_of(frame: FrameType, value: Any) -> str | None:
    """Return the variable of ``frame`` that holds the object ``value``."""
    for name, held in list(frame.f_locals.items()):
        if held is value and _is_name(name):
            return name
    return None


def receivers(frame: FrameType) -> Name | tuple[Name, ...] | object:
    """Return where the result of the frame's running instruction goes.

    A name, a tuple of names when it is unpacked, ``RETURNED``, or None when it goes into a
    larger expression.
    """
    instructions, position = _instructions(frame.f_code)
    index = position.get(frame.f_lasti)
    if index is None or index + 1 >= len(instructions):
        return None
    following = instructions[index + 1]
    if following.opname == "RETURN_VALUE":
        return RETURNED
    if following.opname == "UNPACK_SEQUENCE":
        return _unpacked(instructions, index + 2, following.arg or 0)
    stored = _stored(following)
    return stored[0] if stored else None


def _unpacked(instructions: list[dis.Instruction], start: int, count: int) -> tuple[Name, ...]:
    names: list[Name] = []
    for instruction in instructions[start:]:
        stored = _stored(instruction)
        if len(names) >= count or not stored:
            break
        names.extend(stored)
    return tuple(names[:count])


def _stored(instruction: dis.Instruction) -> list[Name]:
    name, value = instruction.opname, instruction.argval
    if name in ("STORE_FAST", "STORE_DEREF", "STORE_FAST_MAYBE_NULL"):
        return [value if _is_name(value) else None]
    if name == "STORE_FAST_STORE_FAST":
        return [item if _is_name(item) else None for item in value]
    if name == "STORE_FAST_LOAD_FAST":
        return [value[0] if _is_name(value[0]) else None]
    return [None] if name == "POP_TOP" else []


@lru_cache(maxsize=4096)
def _instructions(code: CodeType) -> tuple[list[dis.Instruction], dict[int, int]]:
    listing = [item for item in dis.get_instructions(code) if item.opname != "CACHE"]
    return listing, {item.offset: index for index, item in enumerate(listing)}


def _forwards(code: CodeType) -> bool:
    """Tell whether a function takes anything, as the wrappers of decorators do."""
    return bool(code.co_flags & inspect.CO_VARARGS and code.co_flags & inspect.CO_VARKEYWORDS)


def _is_name(name: str) -> bool:
    return name.isidentifier() and name not in ("self", "cls") and not name.startswith("_")


def _runs_checkpoint(code: CodeType) -> bool:
    return code.co_name == "checkpoint" and code.co_filename == _CHECKPOINT


def _region(function: Any, fqn_of: Callable[[Any], str | None]) -> str:
    """Return the module that a checkpointed function is, or is a method of; else its name."""
    function = function.func if isinstance(function, partial) else function
    owner = getattr(function, "__self__", function)
    name = fqn_of(owner) if isinstance(owner, torch.nn.Module) else None
    return name or str(getattr(function, "__name__", type(function).__name__))
