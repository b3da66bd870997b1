"""
Three binary nodes against the exact answer
===========================================

Three conditionals learn an Ising model on three nodes (section 5.1 of the paper).
There are only eight states, so ``pc.exact`` can compute the learned joint by enumeration.
We compare it with the truth, and we compare the chain's answers with the exact ones.
"""

# %%
# The truth
# ---------
# The data come from :math:`p^*(a, b, c) \propto \exp(-(a + b + c) + ab + ac + bc)`.
# A third of all entries is missing.

import matplotlib.pyplot as plt
import torch

import paracond as pc

names = ("a", "b", "c")
states = pc.Binary(3).values()  # the eight states, [8, 3]
total = states.double().sum(1)
truth = torch.softmax(-total + total * (total - 1) / 2, 0)

generator = torch.Generator().manual_seed(0)
rows = states[torch.multinomial(truth, 10_000, replacement=True, generator=generator)]
known = torch.rand(rows.shape, generator=generator) > 1 / 3
data = pc.Data(
    {name: rows[:, i] for i, name in enumerate(names)},
    {name: known[:, i] for i, name in enumerate(names)},
)

# %%
# The model
# ---------
# Each node has one small network, which reads the two other nodes.

torch.manual_seed(0)
variables = {name: pc.Binary() for name in names}
model = pc.JointModel(
    {
        name: pc.Conditional(
            variables[name], pc.networks.mlp(variables, name, hidden=8, depth=1)
        )
        for name in names
    }
)
learner = pc.Learner(
    model,
    data,
    completion=pc.CompletionOptions(steps=4),
    learning_rate=pc.schedules.cosine(0.02, 0.0, 2000),
)
model = learner.fit(2000)

# %%
# The learned joint
# -----------------
# The joint is the limiting distribution of the chain. Here it is exact.

oracle = pc.exact.enumerate_model(model)
learned = oracle.limiting()
print(f"KL(learned || truth) = {pc.exact.kl(learned.flatten(), truth):.4f} nats")
print(
    f"the conditionals disagree by at most {pc.exact.consistency_gap(oracle.kernel):.3f}"
)

# %%
# A question
# ----------
# We clamp ``a = 1`` and ask for ``b``, by the chain and by enumeration.

answer = pc.query(model, given={"a": torch.ones(1)}, want=["b"])
posterior = oracle.marginal(oracle.posterior({"a": torch.tensor(1.0)}), "b")
print(
    f"p(b = 1 | a = 1): chain {float(answer.probabilities['b']):.3f}, exact {float(posterior[1]):.3f}"
)

# %%
# The picture shows the eight probabilities.

figure, axes = plt.subplots(figsize=(6, 3), layout="constrained")
places = torch.arange(8).numpy()
axes.bar(places - 0.2, truth.numpy(), width=0.4, label="truth")
axes.bar(places + 0.2, learned.flatten().numpy(), width=0.4, label="learned")
axes.set_xticks(places, ["".join(str(int(v)) for v in state) for state in states])
axes.set_xlabel("state (a, b, c)")
axes.set_ylabel("probability")
axes.legend()
plt.show()
