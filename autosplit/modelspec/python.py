"""Specs that name Python code: ``FILE.py:NAME`` and ``package.module:NAME``."""

from __future__ import annotations

import contextlib
import difflib
import importlib
import importlib.util
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from autosplit.errors import AutosplitError, UsageError
from autosplit.modelspec.meta import building

_sibling_modules: dict[Path, set[str]] = {}
"""Names of the modules that were imported from the folder of a spec file."""


def split_spec(spec: str) -> tuple[str, str]:
    """Return the file or module and the name of ``SOURCE:NAME``.

    Raises
    ------
    UsageError
        If there is no name.
    """
    source, _, name = spec.rpartition(":")
    if not source or not name or "/" in name or "\\" in name:
        raise UsageError(
            f"{spec!r} names no model",
            hint="write FILE.py:NAME, package.module:NAME or hf:DIRECTORY",
        )
    return source, name


def import_source(source: str) -> ModuleType:
    """Import the file or module in which a model is defined.

    Raises
    ------
    UsageError
        If it does not exist or fails while it is imported, with the line at fault.
    """
    if source.endswith(".py"):
        return _import_file(Path(source))
    if not re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*", source):
        raise UsageError(f"{source!r} is neither a .py file nor a module", hint="check the path")
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return importlib.import_module(source)
    except ModuleNotFoundError as error:
        if error.name is not None and (source == error.name or source.startswith(f"{error.name}.")):
            raise UsageError(
                f"there is no module {source!r}",
                cause=f"{error.name!r} is not on sys.path",
                hint="install the package, set PYTHONPATH, or give the file: FILE.py:NAME",
            ) from None
        raise fault(error, f"cannot import {source}") from error
    except AutosplitError:
        raise
    except (Exception, SystemExit) as error:
        raise fault(error, f"cannot import {source}") from error


def call_builder(
    module: ModuleType, name: str, *, on_meta: bool = False
) -> tuple[nn.Module, Any, Any]:
    """Call ``module.name()`` and return ``(model, args, kwargs)``; absent parts are None.

    With ``on_meta`` the tensors it makes have shapes but no memory.

    Raises
    ------
    UsageError
        If the name is missing, is no callable, fails, or returns something else.
    """
    builder = _lookup(module, name)
    try:
        with torch.random.fork_rng(devices=[]), building(on_meta):
            torch.manual_seed(0)
            result = builder()
    except AutosplitError:
        raise
    except (Exception, SystemExit) as error:
        found = fault(error, f"{name}() failed{' on meta' if on_meta else ''}", module)
        if on_meta:
            found.hint = "tensors have no values while it builds; without --on-meta they have"
        raise found from error
    parts = result if isinstance(result, tuple) else (result,)
    if not 1 <= len(parts) <= 3 or not isinstance(parts[0], nn.Module):
        raise UsageError(
            f"{name}() returns {_kinds(result)}",
            cause=f"defined at {_place(builder, module)}",
            hint="return a torch.nn.Module, (module, args) or (module, args, kwargs)",
        )
    args = parts[1] if len(parts) > 1 else None
    kwargs = parts[2] if len(parts) > 2 else None
    if isinstance(args, torch.Tensor):
        args = (args,)
    if not isinstance(args, (tuple, list, type(None))) or not isinstance(
        kwargs, (dict, type(None))
    ):
        raise UsageError(
            f"{name}() returns {_kinds(result)}",
            cause=f"defined at {_place(builder, module)}",
            hint="args must be a tuple and kwargs a dict",
        )
    return parts[0], args, kwargs


def call_example_inputs(
    function: Callable[..., Any], batch_size: int | None
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Call ``example_inputs(batch_size)`` and return ``(args, kwargs)``.

    It may return a tensor, a tuple of positional arguments, a dict of keyword arguments, or
    ``(args, kwargs)``.
    """
    with blamed("example_inputs()", function), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        result = function() if batch_size is None else function(batch_size)
    if isinstance(result, torch.Tensor):
        return (result,), {}
    if isinstance(result, dict):
        return (), dict(result)
    if isinstance(result, (tuple, list)):
        pair = tuple(result)
        if len(pair) == 2 and isinstance(pair[0], (tuple, list)) and isinstance(pair[1], dict):
            return tuple(pair[0]), dict(pair[1])
        return pair, {}
    raise UsageError(
        f"example_inputs() returns {_kinds(result)}",
        hint="return a tuple of arguments, a dict of keywords, or (args, kwargs)",
    )


@contextlib.contextmanager
def blamed(what: str, function: Callable[..., Any]) -> Iterator[None]:
    """Around a call of the user's ``function``: say that ``what`` failed, and at which line.

    Raises
    ------
    UsageError
        If the call fails.
    """
    try:
        yield
    except AutosplitError:
        raise
    except (Exception, SystemExit) as error:
        found = fault(error, f"{what} failed", sys.modules.get(function.__module__))
        found.hint = "run again with --traceback to see the calls that lead there"
        raise found from error


def fault(error: BaseException, message: str, module: ModuleType | None = None) -> UsageError:
    """Return a usage error that names the line of the user's code at which ``error`` arose."""
    if isinstance(error, SyntaxError) and error.filename:
        return UsageError(message, cause=f"{error.filename}:{error.lineno}: {error.msg}")
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename == getattr(module, "__file__", None)]
    foreign = [
        frame
        for frame in frames
        if "importlib" not in frame.filename and not frame.filename.startswith(_HERE)
    ]
    said = f"{type(error).__name__}: {' '.join(str(error).split())}"
    if own or foreign:
        place = (own or foreign)[-1]
        said = f"{place.filename}:{place.lineno}: {said}"
    elif file := getattr(module, "__file__", None):
        # It failed before a line of the user's code ran, as a call without an argument does.
        said = f"{file}: {said}"
    return UsageError(message, cause=said)


_HERE = str(Path(__file__).parents[1])
"""Code of this package is never the user's."""


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise UsageError(f"{path} does not exist" if not path.exists() else f"{path} is not a file")
    path = path.resolve()
    _leave_other_folders(path.parent)
    name = f"spec_{re.sub(r'[^0-9A-Za-z_]', '_', path.stem)}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    before = set(sys.modules)
    sys.modules[name] = module
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            spec.loader.exec_module(module)
    except AutosplitError:
        raise
    except (Exception, SystemExit) as error:
        sys.modules.pop(name, None)
        raise fault(error, f"cannot import {path}", module) from error
    finally:
        _remember_siblings(path.parent, set(sys.modules) - before)
    return module


def _leave_other_folders(folder: Path) -> None:
    """Put ``folder`` on the path and forget modules imported from the folders of other specs.

    Two spec files may each have a neighbour of the same name (``layers.py``).
    """
    for other, names in list(_sibling_modules.items()):
        if other == folder:
            continue
        for name in names:
            sys.modules.pop(name, None)
        del _sibling_modules[other]
        if str(other) in sys.path:
            sys.path.remove(str(other))
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _remember_siblings(folder: Path, names: set[str]) -> None:
    known = _sibling_modules.setdefault(folder, set())
    for name in names:
        file = getattr(sys.modules.get(name), "__file__", None)
        if file and Path(file).resolve().is_relative_to(folder):
            known.add(name)


def _lookup(module: ModuleType, name: str) -> Callable[[], Any]:
    found = getattr(module, name, None)
    file = getattr(module, "__file__", module.__name__)
    if found is None:
        choices = [key for key, value in vars(module).items() if _may_build(key, value, module)]
        close = difflib.get_close_matches(name, choices, 3) or choices[:8]
        raise UsageError(
            f"{file} has no {name!r}",
            hint=f"it defines: {', '.join(close)}" if close else "define a function that builds it",
        )
    if isinstance(found, nn.Module) or not callable(found):
        raise UsageError(
            f"{name!r} in {file} is a {type(found).__name__}, not a function",
            hint=f"name a function or class that returns the model when called: def {name}(): ...",
        )
    result: Callable[[], Any] = found
    return result


def _may_build(key: str, value: Any, module: ModuleType) -> bool:
    return (
        callable(value)
        and not key.startswith("_")
        and getattr(value, "__module__", None) == module.__name__
    )


def _place(builder: Callable[[], Any], module: ModuleType) -> str:
    code = getattr(builder, "__code__", None)
    if code is None:
        return str(getattr(module, "__file__", module.__name__))
    return f"{code.co_filename}:{code.co_firstlineno}"


def _kinds(value: Any) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(type(item).__name__ for item in value)})"
    return type(value).__name__
