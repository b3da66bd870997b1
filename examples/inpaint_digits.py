"""
In-paint digits from their top half
===================================

We clamp the upper 32 pixels of an image. The chain redraws the lower 32 pixels, the class and the code.
The model was never trained for this question.
"""

# %%
# The model learns from complete images and their classes.

import matplotlib.pyplot as plt
import torch

import paracond as pc

torch.manual_seed(0)
variables = {
    "x": pc.Real(64, scale="coordinate"),
    "c": pc.Categorical(10),
    "z": pc.Binary(32),
}
model = pc.JointModel(
    {
        name: pc.Conditional(family, pc.networks.mlp(variables, name, depth=1))
        for name, family in variables.items()
    }
)
model = pc.Learner(model, pc.datasets.digits(), learning_rate=5e-3).fit(1500)

# %%
# Clamp single coordinates
# ------------------------
# ``Observed`` says which coordinates of a group are known. The chain redraws all others.
# We draw four completions of each image.

test = pc.datasets.digits("test")
digits, draws = test.state["x"][:10], 4
top = torch.arange(64) < 32
given = {"x": pc.Observed(digits.repeat_interleave(draws, 0), mask=top)}
state = pc.sample(model, given)
classes = state["c"].view(10, draws)
print("true classes ", test.state["c"][:10].tolist())
print("drawn classes", classes.mode(1).values.tolist())

# %%
# A draw has noise of its own in every pixel. The mean of p(x | c, z) at the last class and code has none.
# Where the top half leaves a choice, the four completions differ.

means = torch.where(top, given["x"].value, model("x", state).mean.detach()).view(
    10, draws, 64
)
shown = {"image": digits, "seen": torch.where(top, digits, torch.nan)}
shown |= {f"draw {k + 1}": means[:, k] for k in range(draws)}
figure, axes = plt.subplots(len(shown), 10, figsize=(8, 5), layout="constrained")
for line, (label, images) in zip(axes, shown.items(), strict=True):
    for place, image in zip(line, images, strict=True):
        place.imshow(image.view(8, 8).numpy(), cmap="gray_r", vmin=0, vmax=1)
        place.set(xticks=(), yticks=())
    line[0].set_ylabel(label, rotation=0, ha="right", va="center")
plt.show()
