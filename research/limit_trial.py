"""Trial: train an image model with changes to a preset, and measure it."""

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path

import torch

import paracond as pc
from paracond.experiments.common.images import make_fid, shown
from paracond.experiments.images import fashion, mnist
from paracond.experiments.images.model import bits, generate, make_learner, quality, test_accuracy, usage


@torch.no_grad()
def whiten(model, data, name, spread, rows=2000, floor=1e-3):
    channels = model.variables[name].event_shape[0]
    chosen = torch.randperm(len(data), generator=torch.Generator().manual_seed(0))[:rows]
    q = model.eval_copy()(name, {k: v[chosen].to(model.device) for k, v in data.state.items()})
    mu = q.logits.double().reshape(len(chosen), channels, -1).transpose(1, 2).flatten(0, 1)
    values, vectors = torch.linalg.eigh(torch.cov(mu.T).view(channels, channels))
    whitening = spread * vectors @ torch.diag((values.clamp(min=0) + floor * values[-1]).rsqrt()) @ vectors.T
    first, *more = model.conditional(name).network.heads
    bias = first.bias[:channels]
    bias.copy_(whitening @ (bias.double() - mu.mean(0)))
    for weight in [first.weight[:channels], *(layer.weight for layer in more)]:
        weight.copy_((whitening @ weight.double().reshape(channels, -1)).view_as(weight))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--set", default="fashion")
    p.add_argument("--preset", default="paper")
    p.add_argument("--data")
    p.add_argument("--change", default="{}")
    p.add_argument("--spread", type=float, default=0)
    p.add_argument("--label", required=True)
    p.add_argument("--out")
    p.add_argument("--compile", action="store_true")
    p.add_argument("--count", type=int, default=10000)
    p.add_argument("--real", type=int, default=60000)
    p.add_argument("--short", action="store_true")
    a = p.parse_args()
    module = {"fashion": fashion, "mnist": mnist}[a.set]
    change = {k: tuple(v) if isinstance(v, list) else v for k, v in json.loads(a.change).items()}
    design = replace(module.EXPERIMENT.presets[a.preset], **change)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    data, test = module.EXPERIMENT.load("train", folder=a.data)[: a.real], module.EXPERIMENT.load("test", folder=a.data)
    data = data.to(device)
    learner = make_learner(design, data, pc.Engine(device, compile=a.compile), 0)
    if a.spread:
        for n in ("z", "y"):
            if n in learner.model.names:
                whiten(learner.model, data, n, a.spread)
        learner.averaged.load_state_dict(learner.model.state_dict())
    t0 = time.time()
    for info in learner.run(design.updates):
        if info.step % 10000 == 0:
            print(
                a.label,
                info.step,
                {k: round(float(v), 2) for k, v in learner.losses.items()},
                f"{time.time() - t0:.0f}s",
                flush=True,
            )
    model = learner.averaged
    out = {"label": a.label, "seconds": time.time() - t0, "design": str(design), "spread": a.spread}
    fid = make_fid(device).real(data.state["x"].float())
    if a.short:
        rows = torch.randperm(len(data), generator=torch.Generator().manual_seed(0))[: a.count]
        real = {k: v[rows].to(model.device) for k, v in data.state.items()}
        coded = pc.sample(model, real, sweeps=1)
        out["recon"] = fid.score(shown(model, coded)).value
        out["P"] = fid.score(shown(model, generate(model, real["c"], 100, 0, init="random"))).value
        out["data100"] = fid.score(shown(model, generate(model, real["c"], 100, 0, init=coded))).value
        out["mse"] = float((model("x", coded).mean - real["x"]).square().mean().detach())
    else:
        out |= quality(model, data, fid, a.count)
    u = usage(model, data)
    out["bits"] = bits(u)
    out["active"] = {k: int((v.information > 0.02).sum()) for k, v in u.items()}
    if not a.short:
        out["accuracy"] = test_accuracy(model, test.to(device))
    if "x" in model.names and a.set == "fashion":
        out["sigma"] = float(
            model("x", {k: v[:2] for k, v in pc.sample(model, rows=2, sweeps=1).items()})
            .variance.flatten()[0]
            .sqrt()
            .detach()
        )
    print(json.dumps(out), flush=True)
    if a.out:
        model.save(Path(a.out) / f"model_{a.label}", dtype=torch.bfloat16)
        Path(a.out, f"{a.label}.json").write_text(json.dumps(out))


main()
