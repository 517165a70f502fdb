"""Keyword arguments that torch functions assume when they are left out.

Functions that dispatch on a flag are recorded with all their arguments, and library models pass
many by habit; writing them out would hide the ones that matter. Values are source text.
"""

from __future__ import annotations

COMMON_DEFAULTS = {"inplace": "False", "dtype": "None", "_stacklevel": "3"}
"""Defaults that all functions of ``DEFAULTS`` share that know the argument."""

_POOL = {
    "stride": "None",
    "padding": "0",
    "dilation": "1",
    "ceil_mode": "False",
    "return_indices": "False",
}
_AVERAGE = {
    "stride": "None",
    "padding": "0",
    "ceil_mode": "False",
    "count_include_pad": "True",
    "divisor_override": "None",
}

DEFAULTS: dict[str, dict[str, str]] = {
    "scaled_dot_product_attention": {
        "attn_mask": "None",
        "dropout_p": "0.0",
        "is_causal": "False",
        "scale": "None",
        "enable_gqa": "False",
    },
    "interpolate": {
        "size": "None",
        "scale_factor": "None",
        "mode": '"nearest"',
        "align_corners": "None",
        "recompute_scale_factor": "None",
        "antialias": "False",
    },
    "cross_entropy": {
        "weight": "None",
        "size_average": "None",
        "ignore_index": "-100",
        "reduce": "None",
        "reduction": '"mean"',
        "label_smoothing": "0.0",
    },
    "embedding": {
        "padding_idx": "None",
        "max_norm": "None",
        "norm_type": "2.0",
        "scale_grad_by_freq": "False",
        "sparse": "False",
    },
    "layer_norm": {"weight": "None", "bias": "None"},
    "gelu": {"approximate": '"none"'},
    "pad": {"mode": '"constant"', "value": "None"},
    "softmax": {"dtype": "None"},
    "log_softmax": {"dtype": "None"},
    "silu": {"inplace": "False"},
    "relu": {"inplace": "False"},
    "relu6": {"inplace": "False"},
    "elu": {"alpha": "1.0", "inplace": "False"},
    "leaky_relu": {"negative_slope": "0.01", "inplace": "False"},
    "hardswish": {"inplace": "False"},
    "hardtanh": {"min_val": "-1.0", "max_val": "1.0", "inplace": "False"},
    "mish": {"inplace": "False"},
    "dropout": {"inplace": "False"},
    **{f"max_pool{n}d": _POOL for n in (1, 2, 3)},
    **{f"avg_pool{n}d": _AVERAGE for n in (1, 2, 3)},
}
