"""Six small real models that README, demo and tests split into pipelines.

Every file stands alone and defines what ``autosplit`` looks for beside a model:

``build(**sizes)``
    The model with freshly seeded weights. Defaults are small: a training step takes a fraction
    of a second on one CPU core. ``build_large()`` has the same inputs and enough work for two
    processes to be faster than one (``sample_models/gpt.py:build_large`` on the command line).
``example_inputs(batch_size)``
    What the model is called with: a tuple holds positional arguments, a dict keyword arguments,
    a pair ``(tuple, dict)`` both.
``loss(output, *targets)``
    A scalar; the mean over the rows, so that micro-batches can be averaged.
``batches(batch_size)``
    An endless, seeded iterator of ``(inputs, targets)`` for training: ``inputs`` as above,
    ``targets`` a tuple. The tasks are made up and can be learned, so the loss falls.
"""
