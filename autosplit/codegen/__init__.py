"""Code generation: a stage to readable Python source. One pass, one file."""

from autosplit.codegen.emit import (
    FLAT,
    REWRITES,
    CodegenOptions,
    StageSource,
    generate,
    without,
)
from autosplit.codegen.errors import CodegenError
from autosplit.codegen.originals import with_imports
from autosplit.codegen.scopes import Rewrite

__all__ = [
    "FLAT",
    "REWRITES",
    "CodegenError",
    "CodegenOptions",
    "Rewrite",
    "StageSource",
    "generate",
    "with_imports",
    "without",
]
