"""
Classify digits with half of the labels missing
===============================================

The model learns images, classes and a binary code together.
Half of the training images have no label. The learner draws the missing labels from the model itself.
"""

# %%
# Data with holes
# ---------------
# ``hide`` leaves half of the classes unobserved.

import matplotlib.pyplot as plt
import torch

import paracond as pc

data = pc.datasets.digits(hide={"c": 0.5})
test = pc.datasets.digits("test")
print(f"{len(data)} training images, {int(data.mask['c'].sum())} of them with a label")

# %%
# A model of three groups
# -----------------------
# The image ``x`` has 64 pixels, ``c`` is its class, and the code ``z`` is never observed.

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
model = pc.Learner(model, data, learning_rate=5e-3).fit(1000)

# %%
# Classify
# --------
# We clamp the images and ask for the classes. The chain redraws class and code in turn.

answer = pc.query(model, given={"x": test.state["x"]}, want=["c"])
right = answer.decisions["c"] == test.state["c"]
print(f"accuracy {float(right.float().mean()):.3f}")
print(answer.diagnostics)

# %%
# The answer has a probability for every class.
# These are the eight test images about which the model is least certain.

certainty = answer.probabilities["c"].max(1).values
figure, axes = plt.subplots(
    2, 8, figsize=(9, 3), layout="constrained", height_ratios=(2, 1)
)
for column, row in zip(axes.T, certainty.argsort()[:8], strict=True):
    column[0].imshow(test.state["x"][row].view(8, 8).numpy(), cmap="gray_r")
    column[0].set_title(
        f"{int(answer.decisions['c'][row])}", color="black" if right[row] else "red"
    )
    column[0].axis("off")
    column[1].bar(range(10), answer.probabilities["c"][row].numpy())
    column[1].set(ylim=(0, 1), xticks=(0, 9), yticks=())
figure.suptitle("least certain decisions (red: wrong) and their probabilities")
plt.show()
