"""The UCI digits that ship inside scikit-learn: 1,797 grey images of 8 x 8 pixels with their classes."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from paracond.data import Data, named, one_of, seeded
from paracond.datasets.missing import hide as hide_values


def digits(split: str = "train", hide: Mapping[str, float] | None = None, seed: int = 0) -> Data:
    """Load the digits: images `x` `[rows, 64]` in [0, 1] and classes `c` `[rows]`.

    split: "train" or "test"; a fifth of the images is held out for testing.
    hide: the share of each group that is hidden at random, such as {"c": 0.5}.
    seed: fixes what is hidden.
    """
    one_of("split", split, ("train", "test"))
    fractions = named("hide", {} if hide is None else hide)
    seeded(seed)  # refuses what is no seed
    from sklearn.datasets import load_digits  # here: scikit-learn is slow to import

    raw = load_digits()
    order = torch.randperm(len(raw.target), generator=torch.Generator().manual_seed(0))
    rows = order[len(order) // 5 :] if split == "train" else order[: len(order) // 5]
    state = {
        "x": torch.as_tensor(raw.data / 16, dtype=torch.float32)[rows],
        "c": torch.as_tensor(raw.target)[rows].long(),
    }
    return hide_values(Data(state), fractions, seed=seed)
