import pytest
from hypothesis import given
from hypothesis import strategies as st

from autosplit.report.paths import summarize, tree

GPT = ("embed", *(f"h.{i}.{part}" for i in range(12) for part in ("attn", "mlp")), "norm", "head")


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        (GPT[:1], ("embed",)),
        (GPT, ("embed", "h", "norm", "head")),
        (GPT[:7], ("embed", "h.0 … h.2")),
        (GPT[:6], ("embed", "h.0", "h.1", "h.2.attn")),
        (GPT[6:], ("h.2.mlp", "h.3 … h.11", "norm", "head")),
        (GPT[21:23], ("h.10",)),
        (("h.3.mlp", "h.5.mlp"), ("h.3.mlp", "h.5.mlp")),
        ((), ()),
    ],
)
def test_whole_modules_stand_for_their_layers(chosen, expected):
    assert summarize(chosen, GPT) == expected


def test_further_pieces_of_a_path_are_below_it():
    everything = ("h.0", "h.0#2", "h.0.mlp", "h.1")
    assert summarize(("h.0", "h.0#2", "h.0.mlp"), everything) == ("h.0",)
    assert summarize(("h.0", "h.0#2"), everything) == ("h.0 itself", "h.0#2")
    assert summarize(("h.0#2",), everything) == ("h.0#2",)


def test_a_layer_that_is_also_a_module_is_named_by_itself():
    everything = ("h", "h.0", "h.1", "head")
    assert summarize(("h",), everything) == ("h itself",)
    assert summarize(("h", "h.0"), everything) == ("h itself", "h.0")
    assert summarize(("h.0", "h.1"), everything) == ("h.0", "h.1")


def test_the_tree_keeps_the_order_of_the_layers():
    root = tree(GPT)
    assert tuple(root.layers) == GPT
    assert list(root.children) == ["embed", "h", "norm", "head"]
    assert root.children["h"].children["3"].path == "h.3"


names = st.lists(
    st.lists(st.sampled_from([*"ab012", "b#2"]), min_size=1, max_size=3).map(".".join),
    min_size=1,
    max_size=12,
    unique=True,
)


@given(names, st.data())
def test_different_sets_have_different_summaries(everything, data):
    subsets = st.sets(st.sampled_from(everything))
    first, second = data.draw(subsets), data.draw(subsets)
    short = [summarize(chosen, everything) for chosen in (first, second)]
    assert (short[0] == short[1]) == (first == second)
