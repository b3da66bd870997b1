"""
Fill the holes of a small table
===============================

The iris table has four measurements and a species for each of 150 flowers.
We hide 30% of its entries. Every column is one group of the model, so every pattern of holes is one clamp.
"""

# %%
# A table with holes
# ------------------
# Each row has another pattern of missing entries.

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_iris

import paracond as pc

iris = load_iris()
measured = torch.as_tensor(iris.data, dtype=torch.float32)
measured = (measured - measured.mean(0)) / measured.std(0)
columns = ["sepal length", "sepal width", "petal length", "petal width"]
table = {name: measured[:, i] for i, name in enumerate(columns)} | {
    "species": torch.as_tensor(iris.target)
}
holes = pc.datasets.hide(pc.Data(table), dict.fromkeys(table, 0.3), seed=1)

# %%
# One conditional per column
# --------------------------
# The model learns from the table with its holes. No row is left out.

torch.manual_seed(0)
variables = dict.fromkeys(columns, pc.Real(scale="coordinate")) | {
    "species": pc.Categorical(3)
}
model = pc.JointModel(
    {
        name: pc.Conditional(f, pc.networks.mlp(variables, name, hidden=16, depth=1))
        for name, f in variables.items()
    }
)
options = pc.CompletionOptions(steps=4)
model = pc.Learner(
    model, holes, batch_size=150, completion=options, learning_rate=5e-3
).fit(1000)

# %%
# Impute
# ------
# ``impute`` keeps what is known and fills in the rest: the mean of a measurement, the most probable species.
# Every row runs until its standard errors are small. ``how="sample"`` would draw from the model instead.

filled = pc.impute(model, holes)
for name in columns:
    hidden = ~holes.mask[name]
    error = (filled[name] - table[name])[hidden].square().mean().sqrt()
    column_mean = table[name][holes.mask[name]].mean()
    baseline = (column_mean - table[name])[hidden].square().mean().sqrt()
    print(
        f"{name}: error {float(error):.2f}, with the mean of the column {float(baseline):.2f}"
    )
hidden = ~holes.mask["species"]
right = (filled["species"] == table["species"])[hidden].float().mean()
print(f"species: {float(right):.0%} of {int(hidden.sum())} right")

# %%
# The picture compares imputed and true values. Units are standard deviations.

figure, axes = plt.subplots(
    1, 4, figsize=(9, 2.6), layout="constrained", sharex=True, sharey=True
)
for place, name in zip(axes, columns, strict=True):
    hidden = ~holes.mask[name]
    place.axline((0, 0), slope=1, color="grey", linewidth=0.8)
    place.scatter(table[name][hidden].numpy(), filled[name][hidden].numpy(), s=12)
    place.set(title=name, xlabel="true")
axes[0].set_ylabel("imputed")
plt.show()
