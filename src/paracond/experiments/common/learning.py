"""Parts of a training that several experiments use: the optimiser, balanced data, the number of threads."""

from __future__ import annotations

import torch

import paracond as pc


def adam(name: str, parameters, decay: float = 0.0) -> torch.optim.Optimizer:
    # A shorter memory of squared gradients: the states that a conditional learns from move while it learns.
    return torch.optim.AdamW(parameters, betas=(0.9, 0.99), weight_decay=decay, fused=True)


def balanced(data: pc.Data, share: float, name: str = "c") -> pc.Data:
    """The data, with examples that have `name` repeated until they make up `share` of it."""
    known, rows = data.mask[name].reshape(len(data), -1).all(1).nonzero().squeeze(1), len(data)
    if not 0 < len(known) < share * rows:
        return data
    wanted = round(share / (1 - share) * (rows - len(known)))
    extra = known.repeat(-(-wanted // len(known)))[: wanted - len(known)]
    return data[torch.cat([torch.arange(rows), extra])]


def with_chosen_threads(learner: pc.Learner) -> pc.Learner:
    """On a CPU, let the engine choose the number of threads by timing the learner's networks."""
    model = learner.model.eval_copy()
    some = {name: value[:64] for name, value in learner.batch.state.items()}
    learner.engine.choose_threads(lambda: [model(name, some).mean for name in model.names])
    return learner
