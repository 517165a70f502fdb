"""Code generation: a stage to readable Python source. One pass, one file."""

from autosplit.codegen.emit import FLAT, CodegenOptions, StageSource, generate
from autosplit.codegen.errors import CodegenError
from autosplit.codegen.scopes import Rewrite

__all__ = ["FLAT", "CodegenError", "CodegenOptions", "Rewrite", "StageSource", "generate"]
