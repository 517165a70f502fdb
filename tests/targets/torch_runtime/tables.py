"""Routing tables for tests, written by hand."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

from autosplit.targets.templates.torch.pipeline import Routing, read_routing


def leaf(name: str) -> dict[str, Any]:
    return node("value", value=name)


def constant(value: Any) -> dict[str, Any]:
    return node("constant", value=value)


def node(kind: str, *items: Any, value: Any = None, keys: Any = (), type_name: Any = None) -> Any:
    return {
        "kind": kind,
        "value": value,
        "type_name": type_name,
        "keys": list(keys),
        "items": list(items),
    }


def arguments(*args: Any, **kwargs: Any) -> Any:
    named = node("dict", *kwargs.values(), keys=list(kwargs))
    return node("tuple", node("tuple", *args), named)


TABLE: dict[str, Any] = {
    "schema": "autosplit.routing",
    "version": [1, 0],
    "stages": [
        {"take": ["x"], "give": ["h"], "clone": []},
        {"take": ["h", "labels"], "give": ["y"], "clone": ["h"]},
    ],
    "cuts": [["h"]],
    "inputs": [],
    "input_tree": arguments(leaf("x"), labels=leaf("labels"), flag=constant(True)),
    "output_tree": node("dict", leaf("y"), leaf("x"), keys=["y", "x"]),
    "values": [
        {"name": "x", "shape": ["batch", 3], "dtype": "float32", "batch_dim": 0},
        {"name": "labels", "shape": ["batch"], "dtype": "int64", "batch_dim": 0},
        {"name": "h", "shape": ["batch", 3], "dtype": "float32", "batch_dim": 0},
        {"name": "y", "shape": [], "dtype": "float32", "batch_dim": None},
    ],
    "shared": [],
    "replicated": [],
    "aliases": [],
    "unused": [],
    "buffers": [[], []],
    "symbols": [["batch", 4]],
    "mode": None,
    "state": [[], []],
    "run": {"ranks": [0, 1], "schedule": "1f1b", "microbatches": 4, "microbatch_size": 4},
}


def table(tmp_path: Path, **changes: Any) -> Routing:
    """Return ``TABLE`` with changes, read from a file."""
    path = tmp_path / "routing.json"
    path.write_text(json.dumps({**copy.deepcopy(TABLE), **changes}))
    return read_routing(path)
