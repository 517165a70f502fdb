"""From a program and its stages to source text."""

from __future__ import annotations

from dataclasses import dataclass

from autosplit.codegen import flow, helpers, names, statements, tree
from autosplit.codegen.classes import define, name_classes
from autosplit.codegen.scopes import Rewrite, Scope, StageGraph
from autosplit.codegen.source import Source
from autosplit.program import Program
from autosplit.stages.types import StageSpec


@dataclass(frozen=True, slots=True)
class CodegenOptions:
    """What the emitted code may look like; everything off gives one statement an operation.

    Parameters
    ----------
    classes
        Give each module of the model a class; else one flat body.
    fold
        Write values without a source name inside the operation that reads them.
    source_names
        Use the variable names of the model's source.
    """

    classes: bool = True
    fold: bool = True
    source_names: bool = True


FLAT = CodegenOptions(classes=False, fold=False)


@dataclass(frozen=True, slots=True)
class StageSource:
    """The file of one stage.

    Parameters
    ----------
    index
        Number of the stage.
    text
        Contents of ``stages/stage_K.py``.
    rewrites
        Where the text differs from the recorded operations.
    """

    index: int
    text: str
    rewrites: tuple[Rewrite, ...]


def generate(
    program: Program, specs: tuple[StageSpec, ...], options: CodegenOptions | None = None
) -> tuple[StageSource, ...]:
    """Return the source of every stage.

    Raises
    ------
    CodegenError
        If an operation or module of a stage cannot be written.
    """
    chosen = options or CodegenOptions()
    return tuple(_stage(program, spec, chosen) for spec in specs)


def _stage(program: Program, spec: StageSpec, options: CodegenOptions) -> StageSource:
    graph = _graph(program, spec)
    root = tree.flat(graph)
    flow.connect(graph, root)
    for scope in [*root.scopes(), root]:
        _body(graph, scope, options)
    functions = helpers.collect(graph, root)
    classes = define(graph, root, functions.name)
    name_classes(graph, classes, {helper.name for helper in functions.distinct})
    text = Source(graph, classes, functions).text()
    return StageSource(spec.index, text, tuple(graph.rewrites))


def _graph(program: Program, spec: StageSpec) -> StageGraph:
    nodes = {name: program.node[name] for name in spec.nodes}
    graph = StageGraph(program, spec, nodes, list(spec.give))
    for name in (*spec.take, *spec.nodes):
        for source in program.node[name].source_names:
            found = graph.names.setdefault(source.call, {}).setdefault(name, [])
            if names.usable(source.name) and source.name not in found:
                found.append(source.name)
    return graph


def _body(graph: StageGraph, scope: Scope, options: CodegenOptions) -> None:
    """Write the statements of a scope, and name its values."""
    taken = {helpers.wished_name(inner) for inner in scope.scopes() if inner.kind == "function"}
    forced: set[str] = set()
    while True:
        scope.body = list(
            statements.statements(
                graph, scope, fold=options.fold, chain=options.fold, forced=forced
            )
        )
        crowded = names.assign(graph, scope, taken, source=options.source_names)
        if not options.fold or not crowded - forced:
            return
        forced |= crowded
