"""Whether a given picture looks like the model's images, or like their negatives.

White is 1 in all pictures that are read or written. Whoever draws black on white gives the negative 1 - x. As for
independent Gaussian pixels with the mean m and variance v of the model's own images,

    log p(1 - x) - log p(x) = sum_j (2 x_j - 1) (1 - 2 m_j) / (2 v_j),

so a picture looks inverted where this is positive. (`FLOOR` is added to v: a few images do not show how rare a value
is.) The rule is used only if it takes none of the model's own images for a negative.

Of the 10,000 test images of MNIST it takes none for a negative, and all of their negatives. Of Fashion-MNIST's it takes
1 for a negative, and 9,999 of their negatives. It is not used for the model of faces, where it would err in 3 to 7%.
"""

from __future__ import annotations

from torch import Tensor

import paracond as pc
from paracond.data import State

IMAGES, SWEEPS, FLOOR = 128, 5, 0.01


def own_images(model: pc.JointModel, name: str, context: State | None = None) -> Tensor:
    """Some images of the model: from its initializer, or else after a few sweeps.

    context: one row of the given context, by group.
    """
    sweeps = 0 if model.conditional(name).init is not None else SWEEPS
    given = {group: value[:1].expand(IMAGES, *value.shape[1:]) for group, value in (context or {}).items()}
    state = pc.sample(model, given, rows=IMAGES, sweeps=sweeps, engine="eager", progress=False)
    return state[name].cpu().float().clamp(0, 1)


def looks_inverted(images: Tensor, own: Tensor, mask: Tensor | None = None) -> Tensor | None:
    """Whether each image `[rows, *event]` looks inverted, `[rows]`; None if that cannot be told.

    own: images of the model, `[n, *event]`.
    mask: the pixels that are known, `[*event]`.
    """
    weights = (1 - 2 * own.mean(0)) / (own.var(0) + FLOOR)
    weights = weights if mask is None else weights * mask
    scores = [((2 * each.float() - 1) * weights).flatten(1).sum(1) for each in (images, own)]
    return None if bool((scores[1] >= 0).any()) else scores[0] > 0


def remark(where: str, found: Tensor | None, inverted: bool) -> str | None:
    """What to tell the user about the polarity of a picture; None where all is well.

    where: the picture, NAME=FILE.
    found: as `looks_inverted` says.
    inverted: whether --invert was given.
    """
    read, other = ("black", "without --invert white") if inverted else ("white", "with --invert black")
    if found is None:
        return f"{where} is read with {read} as 1; {other} is"
    if not bool(found.any()):
        return None
    remedy = "leave out --invert" if inverted else "add --invert"
    return f"{where} looks inverted: {read} is read as 1, and its negative is more like the model's images; {remedy}"
