"""One small model for each thing that a pipeline gets wrong easily."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.functional.runtime.recipes import (
    Recipe,
    Step,
    arguments,
    constant,
    dict_of,
    tuple_of,
    value,
)

WIDTH = 6


@dataclass
class Scores:
    """An output class of the model's own."""

    scores: Tensor
    hidden: tuple[Tensor, Tensor]
    note: str | None = None


class Linears(nn.Module):
    """Four linear layers ``a`` to ``d``."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        for name in "abcd":
            self.add_module(name, nn.Linear(WIDTH, WIDTH))


def rows(count: int, length: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return one input of shape ``(count, WIDTH)``."""
    generator = torch.Generator().manual_seed(count)
    return (torch.randn(count, WIDTH, generator=generator),), {}


def square(output: Any, *targets: Any) -> Tensor:
    """Return the mean square of every floating-point tensor of the output, summed."""
    tensors = torch.utils._pytree.tree_leaves(
        vars(output) if isinstance(output, Scores) else output
    )
    floats = [t for t in tensors if isinstance(t, Tensor) and t.is_floating_point()]
    return sum((t.float().pow(2).mean() for t in floats), torch.zeros(()))


def linear(name: str, source: str, out: str | None = None) -> Step:
    """Return the step ``out = root.name(source)``."""
    return Step(out or name, lambda root, x: root.get_submodule(name)(x), (source,), (name,))


def apply(name: str, function: Any, *sources: str, **more: Any) -> Step:
    """Return the step ``name = function(*sources)``."""
    return Step(name, lambda root, *values: function(*values), sources, **more)


def simple(name: str, steps: list[Step], output: str = "y", **more: Any) -> Recipe:
    """Return a recipe with input ``x``, layers ``a`` to ``d`` and a tensor as output."""
    fields: dict[str, Any] = {
        "make_root": Linears,
        "inputs": rows,
        "input_tree": arguments(value("x")),
        "output_tree": value(output),
        "loss": square,
    }
    return Recipe(name=name, steps=steps, **{**fields, **more})


# ---------------------------------------------------------------- scenarios


def skips() -> Recipe:
    """Skips over several stages; one tensor that many later stages use."""
    return simple(
        "skips",
        [
            linear("a", "x"),
            linear("b", "a"),
            linear("c", "b"),
            apply("s", torch.add, "c", "a"),
            linear("d", "s"),
            apply("t", torch.add, "d", "a"),
            apply("y", torch.mul, "t", "b"),
        ],
    )


def late_inputs() -> Recipe:
    """Keyword, None, flag and nested inputs; labels first used in the last stage."""

    def inputs(count: int, length: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        (x,), _ = rows(count, length)
        generator = torch.Generator().manual_seed(count)
        labels = torch.randint(0, WIDTH, (count,), generator=generator)
        return (), {
            "x": x,
            "extra": {"bias": [x * 2, None]},
            "labels": labels,
            "flag": True,
            "nothing": None,
        }

    return simple(
        "late_inputs",
        [
            linear("a", "x"),
            linear("b", "a"),
            apply("shifted", torch.add, "b", "bias"),
            linear("c", "shifted"),
            apply("loss", F.cross_entropy, "c", "labels"),
        ],
        inputs=inputs,
        input_tree=arguments(
            x=value("x"),
            extra=dict_of(bias=_list(value("bias"), constant(None))),
            labels=value("labels"),
            flag=constant(True),
            nothing=constant(None),
        ),
        output_tree=dict_of(loss=value("loss"), logits=value("c"), cache=constant(None)),
        loss=lambda output: output["loss"],
    )


def _list(*items: Any) -> Any:
    from autosplit.program import Tree

    return Tree("list", items=items)


def output_class() -> Recipe:
    """A dataclass as output, with early values, an input, and one tensor twice; targets."""
    from autosplit.program import Tree

    tree = Tree(
        "object",
        type_name=f"{__name__}:Scores",
        keys=("scores", "hidden", "note"),
        items=(value("c"), tuple_of(value("a"), value("x")), constant("kept")),
    )

    def loss(output: Scores, targets: Tensor, scale: float) -> Tensor:
        assert isinstance(output, Scores)
        assert output.note == "kept"
        return ((output.scores - targets) * scale).pow(2).mean() + output.hidden[0].mean()

    return simple(
        "output_class",
        [linear("a", "x"), linear("b", "a"), linear("c", "b")],
        output_tree=tree,
        loss=loss,
        targets=lambda count: (torch.arange(count * 1.0)[:, None].expand(count, WIDTH), 0.5),
    )


def dtypes() -> Recipe:
    """Many dtypes cross, integers exactly, with and without gradient; 0-dim and empty ones."""
    casts: dict[str, Any] = {
        "half": lambda h: h.half(),
        "bfloat16": lambda h: h.bfloat16(),
        "double": lambda h: h.double(),
        "int8": lambda h: (h * 50).to(torch.int8),
        "big": lambda h: (h * 50).to(torch.int64) + 2**53 + 1,
        "mask": lambda h: h > 0,
        "mean": lambda h: h.mean(),
        "count": lambda h: (h > 0).sum(),
        "empty": lambda h: h[:, :0],
    }

    def join(h: Tensor, *values: Tensor) -> Tensor:
        half, bfloat16, double, int8, big, mask, mean, count, empty = values
        exact = (big - 2**53 - 1).float()
        total = h + half.float() + bfloat16.float() + double.float() + int8.float() + exact
        return (torch.cat([total * mask, empty], 1) * mean + count) * 1e-3

    return simple(
        "dtypes",
        [
            linear("a", "x"),
            *(apply(name, function, "a") for name, function in casts.items()),
            linear("b", "a"),
            linear("c", "b"),
            apply("y", join, "c", *casts),
        ],
    )


def no_gradient() -> Recipe:
    """A value that is used without gradient alone, a no_grad region over a cut, unused paths."""

    def island(root: nn.Module, h: Tensor) -> Tensor:
        with torch.no_grad():
            return root.get_submodule("b")(h).relu()

    def island_end(t: Tensor) -> Tensor:
        with torch.no_grad():
            return t * 2

    return simple(
        "no_gradient",
        [
            linear("a", "x"),
            Step("t", island, ("a",), ("b",)),
            apply("u", island_end, "t"),
            linear("c", "a"),
            linear("d", "a"),
            apply("gate", lambda d: d.detach() > 0, "d"),
            apply("y", lambda c, u, gate: (c + u) * gate, "c", "u", "gate"),
        ],
    )


class Tied(Linears):
    """Ties within a stage and across stages, a reused layer and bare parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.c.weight = self.a.weight
        self.d.weight = self.a.weight
        self.scale = nn.Parameter(torch.full((WIDTH,), 0.9))
        self.temperature = nn.Parameter(torch.tensor(1.5))
        self.never = nn.Parameter(torch.ones(3))
        self.list = nn.ParameterList([nn.Parameter(torch.ones(WIDTH)) for _ in range(2)])


def tied() -> Recipe:
    """Tied weights, a layer called three times, bare root parameters, a ParameterList."""
    return simple(
        "tied",
        [
            linear("a", "x"),
            linear("b", "a", "b1"),
            Step("s", lambda r, x: x * r.scale / r.temperature, ("b1",), ("scale", "temperature")),
            linear("b", "s", "b2"),
            linear("c", "b2"),
            Step("l", lambda r, x: x * getattr(r.list, "1"), ("c",), ("list.1",)),
            linear("b", "l", "b3"),
            linear("d", "b3"),
            Step("y", lambda r, x: x * r.temperature, ("d",), ("temperature",)),
        ],
        make_root=Tied,
    )


class Buffered(Linears):
    """Root buffers that every stage uses, one of them not persistent."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.arange(WIDTH) % 2 == 0)
        self.register_buffer("shift", torch.linspace(0, 1, WIDTH), persistent=False)


def buffers() -> Recipe:
    """Shared buffers, persistent or not, and a view of one that crosses."""
    masked = ("mask", "shift")
    return simple(
        "buffers",
        [
            linear("a", "x"),
            Step("m", lambda r, x: x * r.mask + r.shift, ("a",), masked),
            Step("part", lambda r: r.shift[1:3], (), ("shift",)),
            linear("b", "m"),
            Step("n", lambda r, x: x * r.mask + r.shift, ("b",), masked),
            linear("c", "n"),
            apply("y", lambda x, part: x * part.sum(), "c", "part"),
        ],
        make_root=Buffered,
    )


def in_place() -> Recipe:
    """Writes to what was received, through a view too; an input changed early and used late."""

    def halve(h: Tensor) -> Tensor:
        return h[:, :2].mul_(0.5)

    return simple(
        "in_place",
        [
            apply("x2", lambda x: x * 2, "x"),
            linear("a", "x2"),
            apply("g", lambda a: a + 1, "a"),
            linear("b", "g"),
            apply("r", torch.relu_, "b", mutates=("b",)),
            apply("grown", lambda x: x.add_(1.0), "x", mutates=("x",)),
            linear("c", "b"),
            apply("h", halve, "a", mutates=("a",)),
            linear("d", "c"),
            apply("y", lambda d, a, x: d * a + x, "d", "a", "x"),
        ],
    )


class Normed(Linears):
    """Two BatchNorm layers."""

    def __init__(self) -> None:
        super().__init__()
        self.n1 = nn.BatchNorm1d(WIDTH)
        self.n2 = nn.BatchNorm1d(WIDTH, momentum=0.05)


def batch_norm() -> Recipe:
    """BatchNorm statistics: each micro-batch counts once."""

    def norm(name: str, source: str) -> Step:
        step = linear(name, source)
        step.writes = tuple(f"{name}.{b}" for b in ("running_mean", "running_var"))
        return step

    return simple(
        "batch_norm",
        [
            linear("a", "x"),
            norm("n1", "a"),
            apply("r", torch.relu, "n1"),
            linear("b", "r"),
            norm("n2", "b"),
            linear("c", "n2"),
            apply("y", torch.tanh, "c"),
        ],
        make_root=Normed,
    )


def autocast() -> Recipe:
    """An autocast region that a cut divides: both stages enter it."""

    def cast(name: str, source: str, out: str | None = None) -> Step:
        def run(root: nn.Module, x: Tensor) -> Tensor:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return root.get_submodule(name)(x)

        return Step(out or name, run, (source,), (name,))

    return simple(
        "autocast",
        [linear("a", "x"), cast("b", "a"), cast("c", "b"), apply("y", lambda c: c.float(), "c")],
    )


def dropout() -> Recipe:
    """Dropout that follows ``train()`` and ``eval()``; off here, so that numbers are equal."""

    def drop(root: nn.Module, x: Tensor) -> Tensor:
        return F.dropout(x, 0.5, root.training)

    return simple(
        "dropout",
        [linear("a", "x"), Step("p", drop, ("a",)), linear("b", "p"), Step("y", drop, ("b",))],
        evaluate=True,
    )


class Frozen(Linears):
    """Nothing to train at the start, or at the end."""

    def __init__(self, trained: str) -> None:
        super().__init__()
        for name, parameter in self.named_parameters():
            parameter.requires_grad_(name.startswith(trained))


def frozen_head() -> Recipe:
    """The last layer alone is trained."""
    return simple(
        "frozen_head",
        [linear("a", "x"), linear("b", "a"), apply("t", torch.tanh, "b"), linear("c", "t", "y")],
        make_root=lambda: Frozen("c"),
    )


def frozen_tail() -> Recipe:
    """The first layer alone is trained."""
    return simple(
        "frozen_tail",
        [linear("a", "x"), linear("b", "a"), linear("c", "b"), apply("y", torch.tanh, "c")],
        make_root=lambda: Frozen("a"),
    )


def layout() -> Recipe:
    """Transposed, expanded and sliced tensors cross; the batch of one input is dimension 1."""

    def inputs(count: int, length: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        (x,), _ = rows(count, length)
        return (x, torch.linspace(0, 1, length * count).view(length, count)), {}

    return simple(
        "layout",
        [
            linear("a", "x"),
            apply("e", lambda h: h.mean(1, keepdim=True).expand(-1, WIDTH), "a"),
            apply("t", lambda h: h.t(), "a"),
            linear("b", "a"),
            apply("s", lambda z: z[1:].cumsum(0), "z"),
            linear("c", "b"),
            apply("y", lambda c, e, t, s: c * e + t.t() + s.t().mean(1)[:, None], *"cets"),
        ],
        inputs=inputs,
        input_tree=arguments(value("x"), value("z")),
        output_tree=tuple_of(value("y"), value("s")),
        batch_dims={"z": 1},
    )


SCENARIOS = (
    skips,
    late_inputs,
    output_class,
    dtypes,
    no_gradient,
    tied,
    buffers,
    in_place,
    batch_norm,
    autocast,
    dropout,
    frozen_head,
    frozen_tail,
    layout,
)
