"""Our VAE and that of another library (pythae), of the same size and with the same number of updates.

Both networks have one hidden layer of 512 units (pythae's default encoder and decoder). Both libraries use `--latents`
Gaussian latents, Adam at 1e-3, the same examples per update and no moving averages. The script compares the mean of
-ELBO over the test images, which both libraries define alike:

- "grey": p(x | z) = N(decoder(z), 1), without its constant. Pythae's decoder ends in a sigmoid, ours does not;
- "binary": pixels are 1 where they exceed one half, p(x | z) is Bernoulli. The two models are then the same.

Pythae is no dependency of paracond. Install it into a folder OUTSIDE that you delete later:

    pip install --no-deps --target OUTSIDE pythae==0.1.2 pydantic pydantic-core annotated-types \
        typing-inspection cloudpickle imageio
    PYTHONPATH=src:OUTSIDE python research/outside_vae.py --out research/data/outside_vae.json
"""

from __future__ import annotations

import json
import math
import statistics
import time
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import torch
import tyro
from pythae.models import VAE, VAEConfig
from torch import Tensor

import paracond as pc
from paracond.baselines import directed
from paracond.experiments.common.config import plain
from paracond.experiments.common.results import origin

PIXELS = 784


@dataclass(frozen=True)
class Config:
    """Our VAE beside pythae's."""

    out: Path = Path("research/data/outside_vae.json")
    updates: int = 3000
    batch_size: int = 128
    latents: int = 16
    seeds: int = 3
    draws: int = 10
    """of z, for the ELBO of a test image"""


def batches(images: Tensor, config: Config, seed: int):
    """Shuffled passes, as our learner has them (but for the rest of a pass that fills no batch, which it keeps)."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.empty(0, dtype=torch.long)
    for _ in range(config.updates):
        if len(order) < config.batch_size:
            order = torch.randperm(len(images), generator=generator)
        yield images[order[: config.batch_size]]
        order = order[config.batch_size :]


def theirs(kind: str, train: Tensor, test: Tensor, config: Config, seed: int) -> float:
    torch.manual_seed(seed)
    loss = {"grey": "mse", "binary": "bce"}[kind]
    model = VAE(VAEConfig(input_dim=(1, 28, 28), latent_dim=config.latents, reconstruction_loss=loss))
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)
    model.train()
    for images in batches(train, config, seed):
        optimiser.zero_grad()
        model({"data": images}).loss.backward()
        optimiser.step()
    model.eval()
    with torch.no_grad():
        return statistics.fmean(float(model({"data": test}).loss) for _ in range(config.draws))


def ours(kind: str, train: Tensor, test: Tensor, config: Config, seed: int) -> float:
    torch.manual_seed(seed)
    x = pc.Real(PIXELS, scale=1.0) if kind == "grey" else pc.Binary(PIXELS)
    groups = {"x": x, "z": pc.Real(config.latents, scale="element", initial_scale=1.0)}
    nets = {n: pc.networks.mlp(groups, n, hidden=512, depth=1, activation="relu") for n in groups}
    model = pc.JointModel({n: pc.Conditional(f, nets[n]) for n, f in groups.items()})
    data = pc.Data({"x": train.flatten(1)})
    learner = pc.VAE(model, data, batch_size=config.batch_size, average=0.0, engine="eager", seed=seed)
    learned = learner.fit(config.updates, progress=False)
    bound = directed.elbo(learned, pc.Data({"x": test.flatten(1)}), draws=config.draws, seed=seed).mean()
    constant = PIXELS / 2 * math.log(2 * math.pi) if kind == "grey" else 0.0
    return -float(bound) - constant


def main(config: Config) -> None:
    torch.set_num_threads(1)
    grey = {split: pc.datasets.fashion(split).state["x"] for split in ("train", "test")}
    found: dict = {}
    for kind in ("grey", "binary"):
        sets = {k: v if kind == "grey" else (v > 0.5).float() for k, v in grey.items()}
        for name, method in (("pythae", theirs), ("paracond", ours)):
            began = time.perf_counter()
            values = [method(kind, sets["train"], sets["test"], config, seed) for seed in range(config.seeds)]
            spread = statistics.stdev(values) if len(values) > 1 else None
            seconds = (time.perf_counter() - began) / config.seeds
            found[f"{kind} {name}"] = {
                "mean": statistics.fmean(values),
                "std": spread,
                "values": values,
                "seconds": seconds,
            }
            print(f"{kind} {name}: -ELBO {statistics.fmean(values):.3f}, {values}, {seconds:.0f} s each", flush=True)
    record = {**origin("cpu"), "pythae": version("pythae"), "config": plain(config), "minus_elbo": found}
    config.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main(tyro.cli(Config))
