"""Trial: a masked any-order network over the codes y of a trained image model, as its initializer."""

import argparse
import json
import math
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

import paracond as pc
from paracond import datasets
from paracond.chain import Chain
from paracond.experiments.common.images import make_fid, shown
from paracond.initializers.initial_state import initial_state
from paracond.metrics.fid import Statistics, frechet_distance


class Block(nn.Module):
    def __init__(s, d, heads):
        super().__init__()
        s.n1, s.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        s.qkv, s.o = nn.Linear(d, 3 * d), nn.Linear(d, d)
        s.up, s.down = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)
        s.heads = heads
        nn.init.zeros_(s.o.weight)
        nn.init.zeros_(s.down.weight)

    def forward(s, h):
        b, n, d = h.shape
        q, k, v = s.qkv(s.n1(h)).view(b, n, 3, s.heads, d // s.heads).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v)
        h = h + s.o(a.transpose(1, 2).reshape(b, n, d))
        return h + s.down(F.gelu(s.up(s.n2(h))))


class Codes(nn.Module):
    def __init__(s, channels, places, classes, d=512, depth=8, heads=8):
        super().__init__()
        s.c, s.p = channels, places
        s.inp = nn.Linear(2 * channels, d)
        s.pos = nn.Parameter(0.02 * torch.randn(places, d))
        s.cls = nn.Linear(classes, d)
        s.blocks = nn.ModuleList(Block(d, heads) for _ in range(depth))
        s.norm, s.out = nn.LayerNorm(d), nn.Linear(d, channels)

    def forward(s, y, seen, c):  # [b, places, channels]
        h = s.inp(torch.cat([(2 * y - 1) * seen, seen], -1)) + s.pos + s.cls(c)[:, None]
        for b in s.blocks:
            h = b(h)
        return s.out(s.norm(h)).float()


@torch.no_grad()
def draw(net, c, rounds, schedule="cos", temperature=1.0):
    b = len(c)
    y = torch.zeros(b, net.p, net.c, device=c.device)
    order = torch.rand(b, net.p * net.c, device=c.device).argsort(1).argsort(1).view(b, net.p, net.c)
    total = net.p * net.c
    known = 0
    for r in range(rounds):
        f = (r + 1) / rounds
        upto = (
            total
            if r == rounds - 1
            else int(
                total * (1 - math.cos(f * math.pi / 2))
                if schedule == "cos"
                else total * f ** (2 if schedule == "square" else 1)
            )
        )
        upto = max(upto, known + 1) if upto < total else total
        seen = (order < known).float()
        with torch.autocast(y.device.type, torch.bfloat16):
            logits = net(y, seen, c)
        new = (order >= known) & (order < upto)
        y = torch.where(new, (torch.rand_like(logits) < torch.sigmoid(logits / temperature)).float(), y)
        known = upto
    return y


def tokens(y):
    return y.flatten(2).transpose(1, 2)


def maps(t, like):
    return t.transpose(1, 2).reshape(like)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--model", default="models/fashion")
    p.add_argument("--data")
    p.add_argument("--set", default="fashion")
    p.add_argument("--updates", type=int, default=10000)
    p.add_argument("--batch", type=int, default=512)
    p.add_argument("--out")
    p.add_argument("--d", type=int, default=512)
    p.add_argument("--depth", type=int, default=8)
    p.add_argument("--count", type=int, default=10000)
    p.add_argument("--lr", type=float, default=5e-4)
    p.add_argument("--real", type=int, default=60000)
    p.add_argument("--drop", type=float, default=0.0)
    a = p.parse_args()
    torch.manual_seed(0)
    dev = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_float32_matmul_precision("high")
    model = pc.JointModel.load(a.model).to(dev)
    load = getattr(datasets, a.set)
    train, test = load("train", folder=a.data), load("test", folder=a.data)
    x, c = train.state["x"].to(dev).float(), train.state["c"].to(dev)
    xt, ct = test.state["x"].to(dev).float(), test.state["c"].to(dev)
    x, c, xt, ct = x[: a.real], c[: a.real], xt[: a.real], ct[: a.real]
    fid = make_fid(dev).real(x)
    gen = model.generator(0)
    name = "y" if "y" in model.names else "z"
    fam = model.variables[name].event_shape
    channels, places = (fam[0], math.prod(fam[1:])) if len(fam) == 3 else (1, fam[0])
    onehot = F.one_hot(c, 10).float()

    @torch.no_grad()
    def probs(x, c):
        return torch.cat(
            [
                model(name, {"x": x[i : i + 10000], "c": c[i : i + 10000], **ctx(len(x[i : i + 10000]))}).mean
                for i in range(0, len(x), 10000)
            ]
        )

    def ctx(n):
        return {k: g.values(k, n, model.dtype, model.device) for k, g in model.context.items()}

    py = tokens(probs(x, c).reshape(len(x), channels, places))
    pt = tokens(probs(xt, ct).reshape(len(xt), channels, places))
    net = Codes(channels, places, 10, a.d, a.depth).to(dev)
    ema = Codes(channels, places, 10, a.d, a.depth).to(dev)
    ema.load_state_dict(net.state_dict())
    opt = torch.optim.AdamW(net.parameters(), lr=a.lr, betas=(0.9, 0.98), weight_decay=0.03, fused=True)
    fast = torch.compile(net) if dev == "cuda" else net

    def loss_of(network, prob, oh):
        y = (torch.rand_like(prob) < prob).float()
        b = len(y)
        u = torch.rand(b, 1, 1, device=dev)
        seen = (torch.rand_like(y) < u).float()
        with torch.autocast(y.device.type, torch.bfloat16):
            logits = network(y, seen, oh)
        nll = F.binary_cross_entropy_with_logits(logits, y, reduction="none") * (1 - seen)
        # any-order likelihood in nats: total * E_u[mean nll of hidden]
        hidden = (1 - seen).sum((1, 2)).clamp(min=1)
        return (nll.sum((1, 2)) / hidden).mean() * channels * places

    t0 = time.time()
    for i in range(a.updates):
        lr = a.lr * min(1, (i + 1) / 500) * (0.5 * (1 + math.cos(math.pi * i / a.updates)) + 0.01)
        for g in opt.param_groups:
            g["lr"] = lr
        rows = torch.randint(len(x), (a.batch,), device=dev)
        loss = loss_of(fast, py[rows], onehot[rows])
        opt.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
        with torch.no_grad():
            torch._foreach_lerp_(list(ema.parameters()), list(net.parameters()), 1 - min(0.9995, i / (i + 10)))
        if (i + 1) % 1000 == 0 or i == 99:
            with torch.no_grad():
                te = sum(
                    float(loss_of(ema, pt[k : k + 2000], F.one_hot(ct[k : k + 2000], 10).float()))
                    for k in range(0, len(pt), 2000)
                ) / math.ceil(len(pt) / 2000)
            print(f"{i + 1} {time.time() - t0:.0f}s train {float(loss):.2f} test {te:.2f}", flush=True)
    n = a.count
    torch.manual_seed(1)
    rows = torch.randperm(len(x), device=dev)[:n]
    cls = c[rows]

    def image_of(y):
        return shown(model, {"x": x[: len(y)], "c": cls, name: y, **ctx(len(y))})

    def score(images):
        return frechet_distance(fid._real, fid._statistics(images))

    yr = maps((torch.rand_like(py[rows]) < py[rows]).float(), (n, *fam))
    print("reconstruction", round(score(image_of(yr)), 2), flush=True)
    drawn = {}
    for rounds, sched, temp in [
        (1, "cos", 1),
        (8, "cos", 1),
        (16, "cos", 1),
        (32, "cos", 1),
        (64, "cos", 1),
        (32, "lin", 1),
        (32, "cos", 0.9),
        (64, "lin", 0.95),
    ]:
        y = torch.cat([draw(ema, F.one_hot(part, 10).float(), rounds, sched, temp) for part in cls.split(2500)])
        drawn[rounds, sched, temp] = y = maps(y, (n, *fam))
        print("p0 rounds", rounds, sched, temp, "FID", round(score(image_of(y)), 2), flush=True)
    if a.out:
        torch.save({k: v.half() for k, v in ema.state_dict().items()}, Path(a.out) / f"codes_{a.set}.pt")
        from matplotlib import image as mi

        pics = image_of(drawn[32, "cos", 1])[:, 0].float().cpu()
        order = cls.cpu().argsort(stable=True)
        idx = torch.stack([order[cls.cpu()[order] == k][:16] for k in range(10)])
        mi.imsave(
            Path(a.out) / f"codes_{a.set}.png", pics[idx].permute(0, 2, 1, 3).reshape(280, 448).numpy(), cmap="gray"
        )
    # surfaces along sweeps: from the masked network, from PCA, from data, from random
    times = [0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 384]

    def begin(kind):
        given = {"c": cls, **ctx(n)}
        mask = {k: torch.ones_like(v, dtype=torch.bool) for k, v in given.items()}
        if kind == "pca":
            return initial_state(model, n, gen, given, mask)
        if kind == "random":
            return initial_state(model, n, gen, given, mask, fitted=False)
        if kind == "data":
            return {"x": x[rows], **given, name: yr}
        return {"x": x[rows], **given, name: drawn[32, "cos", 1]}

    def features(state):
        with torch.no_grad():
            px = torch.cat(
                [probs(state["x"][i : i + 5000], state["c"][i : i + 5000]) for i in range(0, len(state["x"]), 5000)]
            ).flatten(1)
        return {"code": px, "image": shown(model, state).flatten(1), "state_x": state["x"].flatten(1)}

    dstate = {"x": xt, "c": ct, **ctx(len(xt)), name: maps((torch.rand_like(pt) < pt).float(), (len(xt), *fam))}
    real = {k: Statistics.of([v]) for k, v in features(dstate).items()}
    results = {"times": times}

    def mix(stats, w):
        m = sum(wi * s.mean for wi, s in zip(w, stats, strict=True))
        second = sum(wi * (s.covariance + torch.outer(s.mean, s.mean)) for wi, s in zip(w, stats, strict=True))
        return Statistics(m, second - torch.outer(m, m), n)

    def weights(w, eps):
        # each recorded time stands for the ages from the middle before to the middle after
        edges = [0] + [(times[i] + times[i + 1] + 1) // 2 for i in range(len(times) - 1)] + [10**9]
        out = []
        for i in range(len(times)):
            lo, hi = max(edges[i] - w, 0), max(edges[i + 1] - w, 0)
            out.append((1 - eps) ** lo - ((1 - eps) ** hi if hi < 10**8 else 0.0))
        return out

    for kind in ("net", "pca"):
        state = begin(kind)
        mask = {"c": torch.ones(n, dtype=torch.bool, device=dev)}
        chain = Chain(model, clamp=mask, scan="systematic", generator=gen)
        stats = {k: [] for k in ("fid", *real)}
        at = 0
        if kind in ("net", "data"):  # x is not of the same draw: redraw x given y first
            from paracond.chain import transition

            state["x"] = transition(model, "x", state, None, gen).value
        for t in times:
            if t > at:
                state = chain.advance(state, chain.sweeps(t - at), progress=False)
                at = t
            stats["fid"].append(fid._statistics(shown(model, state)))
            for k, v in features(state).items():
                stats[k].append(Statistics.of([v]))
        line = {
            k: [round(frechet_distance(fid._real if k == "fid" else real[k], s), 4) for s in v]
            for k, v in stats.items()
        }
        for k, v in line.items():
            print(kind, k, v, flush=True)
        results[kind] = line
        if kind in ("net", "pca"):
            table = {}
            for w in (0, 4, 16, 64):
                for eps in (0.3, 0.1, 0.03, 0.01, 0.003):
                    ww = weights(w, eps)
                    table[f"{w},{eps}"] = {
                        k: round(frechet_distance(fid._real if k == "fid" else real[k], mix(v, ww)), 4)
                        for k, v in stats.items()
                    }
            results[kind + "_K"] = table
            for k in stats:
                best = min(table, key=lambda e: table[e][k])
                print(kind, "K best by", k, best, table[best], flush=True)
    if a.out:
        Path(a.out, f"codes_{a.set}.json").write_text(json.dumps(results))


main()
