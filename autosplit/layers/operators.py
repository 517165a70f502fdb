"""What kind an operation is, by its name: the family it belongs to and what its backward keeps.

What is kept follows torch's ``derivatives.yaml``: the saved variables of each formula. Names are
compared without underscores and without the number of dimensions, so that ``nn.LayerNorm``,
``F.layer_norm`` and ``torch.layer_norm_`` are one.
"""

from __future__ import annotations

import re
from typing import Literal, TypeAlias

from autosplit.layers.work import short_name
from autosplit.program import Node, Program
from autosplit.types import Family

Kept: TypeAlias = Literal[
    "nothing",
    "input",
    "output",
    "both",
    "factors",
    "divisor",
    "indices",
    "statistics",
    "places",
    "mask",
    "attention",
    "loss",
    "gates",
]

_PRODUCTS = "linear matmul bmm mm mv addmm baddbmm addbmm einsum bilinear groupedmm dot outer"
_RECURRENT = "lstm gru rnn lstmcell rnncell grucell rnntanh rnnrelu"
_LOOKUPS = "embedding embeddingbag gather indexselect take takealongdim index"
_NORMS = (
    "layernorm rmsnorm groupnorm batchnorm syncbatchnorm instancenorm localresponsenorm "
    "normalize softmax logsoftmax softmin crossentropy crossentropyloss"
)
_COPIES = (
    "cat concat concatenate stack hstack vstack contiguous clone to type float half bfloat16 "
    "double repeat repeatinterleave reshape flatten view expand roll flip pad split chunk "
    "getitem transpose permute tile copy zeros ones full zeroslike oneslike fulllike empty arange "
    "tril triu"
)

_FAMILY: dict[str, Family] = {
    **dict.fromkeys(_PRODUCTS.split(), "product"),
    **dict.fromkeys(_RECURRENT.split(), "product"),
    **dict.fromkeys(_LOOKUPS.split(), "lookup"),
    **dict.fromkeys(_NORMS.split(), "normalization"),
    **dict.fromkeys(_COPIES.split(), "copy"),
}
_FAMILY_OF_FORM: tuple[tuple[re.Pattern[str], Family], ...] = (
    (re.compile(r"(conv|convtranspose|convolution|lazyconv)"), "convolution"),
    (re.compile(r"scaleddotproduct\w*attention|multiheadattention\w*"), "attention"),
)

_NOTHING = (
    f"{_COPIES} add iadd radd sub isub rsub subtract neg mean sum nansum cumsum interpolate "
    "upsample pixelshuffle pixelunshuffle unfold fold identity detach round floor ceil sign diff "
    "unflatten squeeze unsqueeze narrow select unbind movedim swapaxes diagonal trace zero fill"
)
_OUTPUT = (
    "softmax logsoftmax softmin sigmoid tanh exp expm1 sqrt rsqrt relu reciprocal tan normalize"
)
_INPUT = (
    "gelu silu mish pow rpow square log log1p log2 log10 abs sin cos leakyrelu elu hardswish "
    "hardsigmoid relu6 hardtanh clamp clampmin clampmax clip erf celu selu softplus prelu "
    "logsigmoid avgpool adaptiveavgpool var std softsign threshold"
)
_BOTH = "max min amax amin topk sort kthvalue median logsumexp norm vectornorm prod cumprod"
_INDICES = (
    "embedding embeddingbag gather indexselect take takealongdim index where maskedfill scatter "
    "scatteradd indexadd indexput maskedscatter maskedselect indexcopy"
)

_KEPT: dict[str, Kept] = {
    **dict.fromkeys(_NOTHING.split(), "nothing"),
    **dict.fromkeys(_OUTPUT.split(), "output"),
    **dict.fromkeys(_INPUT.split(), "input"),
    **dict.fromkeys(_BOTH.split(), "both"),
    **dict.fromkeys(_INDICES.split(), "indices"),
    **dict.fromkeys(_PRODUCTS.split(), "factors"),
    **dict.fromkeys(("mul", "imul", "rmul", "multiply"), "factors"),
    **dict.fromkeys(("div", "idiv", "truediv", "rtruediv", "divide", "rdiv"), "divisor"),
    **dict.fromkeys(_RECURRENT.split(), "gates"),
    "layernorm": "statistics",
    "rmsnorm": "statistics",
    "groupnorm": "statistics",
    "batchnorm": "statistics",
    "syncbatchnorm": "statistics",
    "instancenorm": "statistics",
    "maxpool": "places",
    "adaptivemaxpool": "places",
    "dropout": "mask",
    "alphadropout": "mask",
    "featuredropout": "mask",
    "crossentropy": "loss",
    "crossentropyloss": "loss",
}


def kind_of(program: Program, node: Node) -> str:
    """Return the plain name of an operation, the same for a module and its function."""
    if node.op == "module":
        name = program.module[node.target].class_name
    else:
        name = short_name(node.target)
    return re.sub(r"\dd$", "", name.replace("_", "").lower())


def family_of(kind: str) -> Family:
    """Return the family of an operation; what is not known works element by element."""
    for form, family in _FAMILY_OF_FORM:
        if form.fullmatch(kind):
            return family
    return _FAMILY.get(kind, "pointwise")


def kept_by(kind: str) -> Kept:
    """Return what the backward of an operation keeps; of what is not known, everything."""
    family = family_of(kind)
    if family == "convolution":
        return "factors"
    return "attention" if family == "attention" else _KEPT.get(kind, "both")
