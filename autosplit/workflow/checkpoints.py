"""Weights of exports: merged, split, moved."""

from __future__ import annotations

from pathlib import Path

from autosplit.serialize import load
from autosplit.types import Plan
from autosplit.workflow.files import PathLike
from autosplit.workflow.models import config_of


def merge_checkpoint(
    folder: PathLike,
    output: PathLike,
    *,
    weights: PathLike | None = None,
    max_shard_bytes: int | None = None,
    distributed: bool = False,
    force: bool = False,
) -> None:
    """Write one model from the weights of an export's stages.

    Parameters
    ----------
    folder
        The export.
    output
        A ``.safetensors`` or ``.pt`` file; with ``max_shard_bytes`` a folder.
    weights
        Weights of its stages: those of the export, or a checkpoint of its training.
    max_shard_bytes
        Write a Hugging Face folder of shards that are at most this large.
    distributed
        Write a checkpoint of ``torch.distributed.checkpoint``, optimizer state included.
    force
        Replace ``output`` if it exists.

    Raises
    ------
    AutosplitError
        If weights are missing or damaged, or copies of a tensor differ.
    """
    from autosplit import weights as storage

    config = config_of(load(Plan, Path(folder) / "plan.json")) if max_shard_bytes else None
    storage.merge(
        folder,
        output,
        weights=weights,
        max_shard_bytes=max_shard_bytes,
        config=config,
        distributed=distributed,
        force=force,
    )


def split_checkpoint(
    folder: PathLike,
    weights: PathLike,
    output: PathLike,
    *,
    convert: bool = False,
    ignore_extra: bool = False,
    force: bool = False,
) -> None:
    """Write the weights of an export's stages from those of the whole model.

    Parameters
    ----------
    folder
        The export.
    weights
        What ``export`` takes as ``weights``.
    output
        Folder to write, for ``--weights`` of ``train.py``.
    convert
        Convert floating-point tensors to the model's dtype where they have another.
    ignore_extra
        Leave out tensors that the model does not have.
    force
        Replace ``output`` if it exists.

    Raises
    ------
    AutosplitError
        If ``weights`` are damaged or not exactly the model's.
    """
    from autosplit import weights as storage

    storage.split(folder, weights, output, convert=convert, ignore_extra=ignore_extra, force=force)


def recut_checkpoint(
    old: PathLike, folder: PathLike, output: PathLike, *, force: bool = False
) -> None:
    """Take over what one pipeline has trained into another pipeline of the same model.

    Parameters
    ----------
    old
        An export, a checkpoint of its training, or one of ``torch.distributed.checkpoint``;
        optimizer state comes along.
    folder
        The new export.
    output
        Folder to write, for ``--weights`` or ``--resume`` of the new ``train.py``.
    force
        Replace ``output`` if it exists.

    Raises
    ------
    AutosplitError
        If the two are not of the same model, or files are missing or damaged.
    """
    from autosplit import weights as storage

    storage.recut(old, folder, output, force=force)
