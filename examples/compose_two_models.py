"""
Join two models that never met
==============================

One model knows the left halves of digits, another one the right halves. Each was trained alone.
``pc.compose`` puts both into one chain and makes them agree on the class.
"""

# %%
# Two models
# ----------
# Each model has two groups: half an image ``x`` and its class ``c``.

import matplotlib.pyplot as plt
import torch

import paracond as pc
from paracond.composition import Pinned

train, test = (pc.datasets.digits(split).state for split in ("train", "test"))
left = torch.arange(64) % 8 < 4
variables = {"x": pc.Real(32, scale="coordinate"), "c": pc.Categorical(10)}


def learned(side):
    torch.manual_seed(0)
    model = pc.JointModel(
        {
            name: pc.Conditional(f, pc.networks.mlp(variables, name, depth=1))
            for name, f in variables.items()
        }
    )
    return pc.Learner(
        model, pc.Data({"x": train["x"][:, side], "c": train["c"]}), learning_rate=3e-3
    ).fit(500)


models = {"left": learned(left), "right": learned(~left)}

# %%
# One chain
# ---------
# The new group ``class`` is the common class. Classes are equally frequent, so
# :math:`p(c \mid x_l, x_r) \propto p(c \mid x_l)\, p(c \mid x_r)`.
# The class of each model is pinned to the common one.

digit = pc.Categorical(10)


def common(law, others):
    return digit.distribution(law("left.c").mean.log() + law("right.c").mean.log())


def follow(name):
    def rule(law, others):
        value = others["class"].argmax(-1)
        return Pinned(law(name), value, torch.ones_like(value, dtype=torch.bool))

    return rule


joint = pc.compose(
    models,
    groups={"class": digit},
    rules={"class": common, "left.c": follow("left.c"), "right.c": follow("right.c")},
)

# %%
# Ask
# ---
# Each model answers from its own half. The joint model answers from both.

halves = {"left": test["x"][:, left], "right": test["x"][:, ~left]}


def accuracy(answer, name):
    return float((answer.decisions[name] == test["c"]).float().mean())


found = {
    side: accuracy(pc.query(models[side], {"x": halves[side]}, ["c"]), "c")
    for side in models
}
answer = pc.query(
    joint, {f"{side}.x": half for side, half in halves.items()}, ["class"]
)
found["both"] = accuracy(answer, "class")
print({side: round(share, 3) for side, share in found.items()})

# %%
# Together they know more than each one alone.

figure, axes = plt.subplots(figsize=(5, 2.2), layout="constrained")
bars = axes.barh(list(found), list(found.values()))
axes.bar_label(bars, fmt="{:.0%}", padding=3)
axes.set(xlim=(0, 1.1), xlabel="accuracy on 359 test images")
axes.invert_yaxis()
plt.show()
