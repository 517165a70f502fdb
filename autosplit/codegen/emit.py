"""From a program and its stages to source text."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass, replace

from autosplit.codegen import flow, helpers, lists, names, statements, tree
from autosplit.codegen.attributes import name_numbers
from autosplit.codegen.classes import define, name_classes
from autosplit.codegen.dtypes import fixed_at
from autosplit.codegen.loops import fold_loops
from autosplit.codegen.masks import recognise_masks
from autosplit.codegen.packing import pack_inputs
from autosplit.codegen.scopes import Loop, Rewrite, Scope, StageGraph, Statement
from autosplit.codegen.simplify import plain_ambients, simplify
from autosplit.codegen.source import Source
from autosplit.codegen.variants import share_bodies
from autosplit.program import Program, SourceName
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
    helpers
        Keep Python functions of the model as functions.
    chain
        Write ``x.view(...)`` and ``.transpose(...)`` of one variable as one statement.
    loops
        Write repeated statements over the elements of a list as a loop, and what the rounds
        gather as a list.
    simplify
        Leave out operations that return what they are given.
    masks
        Write a causal mask made of index arithmetic as a lower triangle.
    attributes
        Write sizes and factors as the attribute of the model's module that has the value.
    variants
        Let calls of one module class with and without an argument share a body.
    """

    classes: bool = True
    fold: bool = True
    source_names: bool = True
    helpers: bool = True
    chain: bool = True
    loops: bool = True
    simplify: bool = True
    masks: bool = True
    attributes: bool = True
    variants: bool = True


REWRITES: dict[str, tuple[str, ...]] = {
    "causal-mask": ("masks",),
    "fold": ("fold", "chain"),
    "helper": ("helpers",),
    "loop": ("loops",),
    "named-number": ("attributes",),
    "no-op": ("simplify",),
    "shared-body": ("variants",),
}
"""Options behind each rewrite that a user may switch off."""


def without(rewrites: Iterable[str]) -> CodegenOptions:
    """Return the options without some rewrites, by their names in ``REWRITES``."""
    off = {option: False for name in rewrites for option in REWRITES.get(name, ())}
    return replace(CodegenOptions(), **off)


FLAT = CodegenOptions(
    classes=False,
    fold=False,
    helpers=False,
    chain=False,
    loops=False,
    simplify=False,
    masks=False,
    attributes=False,
    variants=False,
)
"""One statement for each recorded operation, whatever it is."""


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
    fixed_at
        Lines of the model's source that tie the stage to the traced dtypes; a stage without
        one may be cast.
    """

    index: int
    text: str
    rewrites: tuple[Rewrite, ...]
    fixed_at: tuple[str, ...] = ()


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
    extents = tree.measure(program, specs)
    return tuple(
        _stage(program, spec, chosen, extents, _made_before(specs[: spec.index], spec))
        for spec in specs
    )


def _made_before(earlier: tuple[StageSpec, ...], spec: StageSpec) -> tuple[Rewrite, ...]:
    made = {name: before.index for before in reversed(earlier) for name in before.nodes}
    return tuple(
        Rewrite("made again", name, f"costs less than sending it from stage {made[name]}")
        for name in spec.nodes
        if name in made
    )


def _stage(
    program: Program,
    spec: StageSpec,
    options: CodegenOptions,
    extents: tree.Extents,
    again: tuple[Rewrite, ...],
) -> StageSource:
    """Write a stage as asked; if that cannot be done, as flat code, and say so."""
    notes: list[Rewrite] = []
    for form in (options, replace(options, loops=False), FLAT):
        try:
            source = _write(program, spec, form, extents)
        except Exception as error:
            if form == FLAT:
                raise
            name = "without loops" if form.loops else "flat"
            notes.append(Rewrite(name, f"stage {spec.index}", f"the form before failed: {error}"))
        else:
            rewrites = (*again, *source.rewrites, *_bound_to_mode(program), *notes[-1:])
            return StageSource(source.index, source.text, rewrites, fixed_at(program, spec))
    raise AssertionError("the flat form returns or raises")


def _bound_to_mode(program: Program) -> tuple[Rewrite, ...]:
    if not program.mode_bound:
        return ()
    mode = "train" if program.training else "eval"
    why = f"the model branches on self.training; this is what it does in {mode} mode"
    return (Rewrite("one mode", "forward", why),)


def _write(
    program: Program, spec: StageSpec, options: CodegenOptions, extents: tree.Extents
) -> StageSource:
    graph = _graph(program, spec)
    if options.simplify:
        simplify(graph)
    if options.masks:
        recognise_masks(graph)
    root = _tree(graph, options, extents)
    functions = helpers.Helpers()
    for scopes in _levels(root):
        for scope in scopes:
            if scope.kind != "sequence":
                _body(graph, scope, options, functions)
            if scope.kind == "function":
                functions.add(graph, scope)
        if options.variants:
            functions.share(graph)
            share_bodies(graph, root, scopes, functions.name)
    classes = define(graph, root, functions.name)
    if options.attributes:
        for group in classes.groups:
            name_numbers(graph, group)
    name_classes(graph, classes, {helper.name for helper in functions.distinct})
    text = Source(graph, classes, functions).text()
    ast.parse(text)
    graph.rewrites += _counted(graph, root)
    return StageSource(spec.index, text, tuple(graph.rewrites))


def _counted(graph: StageGraph, root: Scope) -> list[Rewrite]:
    """Return what is too frequent to be listed one by one."""
    scopes = [scope for scope in [*root.scopes(), root] if scope.kind != "sequence"]
    loops = [part for scope in scopes for part in scope.body if isinstance(part, Loop)]
    lines = [part for scope in scopes for part in scope.body if isinstance(part, Statement)]
    lines += [statement for loop in loops for each in loop.rounds for statement in each]
    written = {line.item for line in lines} | {value for line in lines for value in line.made()}
    folded = [item for scope in scopes for item in scope.items if item not in written]
    count = sum(isinstance(item, str) for item in folded)
    found = []
    if count:
        why = f"{count} operations stand inside the one that reads them; effects keep their order"
        found.append(Rewrite("fold", f"stage {graph.spec.index}", why))
    found += [
        Rewrite("loop", loop.lists[0][0] or "stage" if loop.lists else "stage", _rounds(loop))
        for loop in loops
    ]
    return found


def _rounds(loop: Loop) -> str:
    return f"{len(loop.rounds)} rounds of the same statements"


def _graph(program: Program, spec: StageSpec) -> StageGraph:
    ambients = plain_ambients(program)
    nodes = {name: program.node[name] for name in spec.nodes}
    nodes = {
        name: replace(node, ambient=ambients[name]) if name in ambients else node
        for name, node in nodes.items()
    }
    graph = StageGraph(program, spec, nodes, list(spec.give))
    for name in (*spec.take, *spec.nodes):
        for source in _own_names(program, name):
            held = source.name.endswith(lists.HELD)
            word, value = source.name.removesuffix(lists.HELD), lists.listed(name) if held else name
            found = graph.names.setdefault(source.call, {}).setdefault(value, [])
            if names.usable(word) and word not in found:
                found.append(word)
    return graph


def _own_names(program: Program, name: str) -> list[SourceName]:
    """Return the source names of a value; those an identity hands on are its input's."""
    node = program.node[name]
    names = list(node.source_names)
    if node.op == "module" and program.module[node.target].class_name == "Identity":
        given = [each for value in node.inputs() for each in program.node[value].source_names]
        return [each for each in names if each not in given]
    return names


def _levels(root: Scope) -> list[list[Scope]]:
    """Return the scopes of a stage by height, those without inner ones first."""
    levels: dict[int, list[Scope]] = {}
    for scope in [*root.scopes(), root]:
        levels.setdefault(scope.height, []).append(scope)
    return [levels[height] for height in sorted(levels)]


def _tree(graph: StageGraph, options: CodegenOptions, extents: tree.Extents) -> Scope:
    """Return the scopes of a stage, connected."""
    root = (
        tree.build(graph, extents, helpers=options.helpers) if options.classes else tree.flat(graph)
    )
    flow.connect(graph, root)
    while True:
        broken = next(tree.unlinked_sequences(graph, root), None)
        if broken is None:
            return root
        tree.dissolve(graph, *broken)
        flow.connect(graph, root)


def _body(
    graph: StageGraph, scope: Scope, options: CodegenOptions, functions: helpers.Helpers
) -> None:
    """Write the statements of a scope, and name its values."""
    scope.same_helper = functions.same
    taken = {helper.name for helper in functions.distinct}
    forced: set[str] = set()
    while True:
        lines = statements.statements(
            graph, scope, fold=options.fold, chain=options.chain, forced=forced
        )
        scope.body = fold_loops(graph, scope, lines) if options.loops else list(lines)
        if options.loops and scope.kind == "stage":
            pack_inputs(graph, scope)
        crowded = names.assign(graph, scope, taken, source=options.source_names)
        if not options.fold or not crowded - forced:
            return
        forced |= crowded
