"""Program and stage of each operation in, stages and routing table out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from autosplit.errors import AutosplitError
from autosplit.program import Program, TensorSpec
from autosplit.stages.flow import Flow, trace_flow
from autosplit.stages.placement import Placement, place
from autosplit.stages.rebuild import rebuild
from autosplit.stages.state import Holdings, hold
from autosplit.stages.types import RoutedValue, Routing, StageRoute, StageSpec


def split(
    program: Program, stage_of: Mapping[str, int], count: int, *, again: bool = True
) -> tuple[tuple[StageSpec, ...], Routing]:
    """Cut a program into stages.

    Parameters
    ----------
    program
        A traced model.
    stage_of
        Stage of each operation; dead operations may be missing.
    count
        Number of stages.
    again
        Whether a stage makes masks, positions and tables of earlier stages itself where that
        costs less than sending them.

    Raises
    ------
    AutosplitError
        If the stages do not follow the order of the program, or if no cut there can keep what
        the model does: two names of one memory parted before a write, a buffer written in one
        stage and used in others, a write to a parameter, a returned parameter.
    """
    if count < 1:
        raise AutosplitError(f"a pipeline needs at least one stage, not {count}")
    placement = place(program, stage_of, count)
    if again:
        placement = rebuild(placement)
    flow = trace_flow(placement)
    holdings = hold(placement)
    specs = tuple(
        StageSpec(
            index=stage,
            count=count,
            nodes=tuple(node.name for node in placement.nodes(stage)),
            take=flow.take[stage],
            give=flow.give[stage],
            clone=flow.clone[stage],
            sizes=flow.sizes[stage],
            state=holdings.names[stage],
        )
        for stage in range(count)
    )
    return specs, _routing(placement, flow, holdings)


def _routing(placement: Placement, flow: Flow, holdings: Holdings) -> Routing:
    program = placement.program
    routes = zip(flow.take, flow.give, flow.clone, strict=True)
    return Routing(
        stages=tuple(StageRoute(take, give, clone) for take, give, clone in routes),
        cuts=flow.cuts,
        inputs=program.inputs,
        input_tree=program.input_tree,
        output_tree=program.output_tree,
        values=tuple(_values(placement, flow)),
        shared=holdings.shared,
        replicated=holdings.replicated,
        aliases=holdings.aliases,
        unused=holdings.unused,
        buffers=holdings.buffers,
        symbols=tuple((symbol.name, symbol.example) for symbol in program.symbols),
        mode=("train" if program.training else "eval") if program.mode_bound else None,
        state=holdings.names,
    )


def _values(placement: Placement, flow: Flow) -> Iterator[RoutedValue]:
    program = placement.program
    named = {name for names in (*flow.take, *flow.give) for name in names}
    named.update(spec.name for spec in program.inputs)
    batch_dims = {spec.name: spec.batch_dim for spec in program.inputs}
    batch = _batch_symbols(program)
    for node in program.nodes:
        if node.name not in named or not isinstance(node.value, TensorSpec):
            continue
        shape = node.value.shape
        found = (i for i, dim in enumerate(shape) if dim in batch)
        yield RoutedValue(
            name=node.name,
            shape=shape,
            dtype=node.value.dtype,
            batch_dim=batch_dims.get(node.name, next(found, None)),
        )


def _batch_symbols(program: Program) -> frozenset[str]:
    """Return the symbols that stand at the batch dimension of an input."""
    found = set()
    for spec in program.inputs:
        value = program.node[spec.name].value
        if isinstance(value, TensorSpec) and spec.batch_dim is not None:
            dim = value.shape[spec.batch_dim]
            if isinstance(dim, str):
                found.add(dim)
    return frozenset(found)
