"""Are answers calibrated? Ranks of true values among draws, and intervals that hold the exact answer.

    python campaigns/calibration.py [--count N] [--seconds S] [--seed N] [--out DIR]

Every question is about a joint that is known exactly (`joints`), whose conditionals agree, with values and coordinates
clamped at random. True values are drawn from the joint, so their ranks among draws given the clamps are uniform
(simulation-based calibration: Talts et al. 2018), for every family, by tours and by chains that never begin anew.

    coverage_min, coverage_max   the smallest and the largest share of 95% intervals that hold the exact answer, over
                                 joints and kinds of answers: means, probabilities, standard deviations
    sbc_failures                 sets of ranks that are not uniform; by chance there is one in a thousand runs

Answers to one question share its tours, so the error of a share is that over questions. Joints are asked in turn, half
of them to the precision of `query` itself, half by 200 tours.
"""

from __future__ import annotations

import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import joints
import scipy.stats
import torch
from common import Tally, parser, trials, write
from torch import Tensor

import paracond as pc
from paracond.experiments.common.results import Metric
from paracond.families import Family

Z = 1.96
KINDS = ("means", "probabilities", "standard deviations")
STOPS = (pc.Precise(), pc.Tours(200))
FAILURE_RATE = 1e-3  # of all tests of ranks together
DRAWS = 63  # among which true values are ranked
BINS = 16
REPEATS = 5  # joints of each family
KNOWN = 0.4  # the share of groups, and of coordinates, that are clamped

#: Every family and every kind of scale; a new family needs no more than a line.
FAMILIES: dict[str, Family] = {
    "Binary": pc.Binary(3),
    "Categorical": pc.Categorical(3, 3),
    "Real, element": pc.Real(3, initial_scale=0.5),
    "Real, coordinate": pc.Real(3, scale="coordinate", initial_scale=0.5),
    "Real, learned": pc.Real(3, scale="learned", initial_scale=0.5),
    "Real, fixed": pc.Real(3, scale=0.7),
    "Real, ceiling": pc.Real(3, initial_scale=0.5, ceiling=0.9),
    "Real, bounds": pc.Real(3, initial_scale=0.5, bounds=(-1.0, 0.5)),
    "Truncated": pc.Truncated(3, support=(-1.0, 1.5), initial_scale=0.5),
    "Truncated, positive": pc.Truncated(3, support=(0.0, None), initial_scale=0.5),
}


@dataclass(frozen=True)
class Model:
    """A kind of joint, and the tours that forget where it began.

    make: makes one, from a generator.
    regeneration: its rate and warm-up.
    rows: the questions to each.
    joints: how many are made in each turn. Few questions to a joint of few values differ, so it needs more joints.
    """

    make: Callable[[torch.Generator], joints.Cells | joints.Gaussians]
    regeneration: pc.Regeneration
    rows: int = 90
    joints: int = 1


MODELS: dict[str, Model] = {
    "conditional Gaussian": Model(joints.mixed, pc.Regeneration(0.03, 60), rows=50, joints=7),
    "scale mixture": Model(lambda g: joints.scale_mixture(g, 3.0, 3), pc.Regeneration(0.05, 40), rows=250),
    "stuck number": Model(lambda g: joints.stuck(g, 70, 1.2, True, 0.1), pc.Regeneration(0.05, 40), rows=250),
    "stuck bit": Model(lambda g: joints.stuck(g, 70, 2.0, False, 0.2), pc.Regeneration(0.05, 40), rows=250),
    "slow start": Model(lambda g: joints.slow_start(g, 4), pc.Regeneration(0.03, 40)),
}
TURN = [name for name, model in MODELS.items() for _ in range(model.joints)]
BRISK = pc.Regeneration(0.08, 25)  # for the joints of single families
SWEEPS = 40  # and of their chains that never begin anew


# --- questions --------------------------------------------------------------------------------------------------------


def clamps(state: Mapping[str, Tensor], generator: torch.Generator) -> dict[str, Tensor]:
    """What is known of every row: some groups, and of others some coordinates."""
    known = {}
    for name, value in state.items():
        rows = torch.rand(len(value), generator=generator).view(-1, *[1] * (value.ndim - 1))
        coordinates = torch.rand(value.shape, generator=generator)
        whole, none = (KNOWN, 1.0) if value.ndim == 1 else (KNOWN / 2, 1 - KNOWN / 2)
        known[name] = (rows < whole) | ((rows < none) & (coordinates < 0.5) & (value.ndim > 1))
    return known


def asked(state: Mapping[str, Tensor], known: Mapping[str, Tensor]) -> dict[str, pc.Observed]:
    return {name: pc.Observed(value, known[name]) for name, value in state.items()}


def distinct(state: Mapping[str, Tensor], known: Mapping[str, Tensor]) -> Tensor:
    """Which questions have not been asked in a row before; equal questions have equal answers. Bool `[rows]`."""
    columns = [part.reshape(len(part), -1).double() for part in known.values()]
    columns += [torch.where(known[name], value, 0).reshape(len(value), -1).double() for name, value in state.items()]
    _, which = torch.unique(torch.cat(columns, 1), dim=0, return_inverse=True)
    earlier = (which[:, None] == which).tril(-1)
    return ~earlier.any(1)


# --- intervals --------------------------------------------------------------------------------------------------------


@dataclass
class Share:
    """The share of intervals that hold the exact answer, and its error over questions.

    held, asked: the numbers of every question.
    """

    held: list[Tensor] = field(default_factory=list)
    asked: list[Tensor] = field(default_factory=list)

    def add(self, held: Tensor, asked: Tensor) -> None:
        """held, asked: Bool `[rows, answers]`."""
        self.held.append((held & asked).sum(1).double())
        self.asked.append(asked.sum(1).double())

    @property
    def number(self) -> int:
        return int(sum(float(part.sum()) for part in self.asked))

    @property
    def value(self) -> float:
        return float(torch.cat(self.held).sum() / self.number)

    @property
    def error(self) -> float:
        gaps = torch.cat(self.held) - self.value * torch.cat(self.asked)
        return float(gaps.square().sum().sqrt() / self.number)


def ask(
    joint: joints.Cells | joints.Gaussians,
    rows: int,
    generator: torch.Generator,
    shares: Mapping[str, Share],
    **options,
) -> None:
    """Ask a joint so many questions by tours, and count the intervals by kind."""
    state = joint.draw(rows, generator)
    known = clamps(state, generator)
    new = distinct(state, known)
    state, known = ({name: value[new] for name, value in each.items()} for each in (state, known))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pc.ImpreciseWarning)  # errors are what is checked
        answer = pc.query(joint.model, asked(state, known), list(joint.model.names), **options)
    assert answer.diagnostics.tours is not None
    toured = answer.diagnostics.tours > 0  # other rows are exact
    parts: dict[str, list[tuple[Tensor, Tensor]]] = defaultdict(list)
    for name, (mean, std) in joint.posterior(state, known).items():
        finite, unknown = joint.model.variables[name].finite, ~joint.model.variables[name].expand(known[name])
        unknown = unknown.expand_as(mean).reshape(len(mean), -1) & toured[:, None]
        found = answer.probabilities[name] if finite else answer.mean[name]
        triples = [("probabilities" if finite else "means", found, answer.error[name], mean)]
        if name in answer.std:
            triples.append(("standard deviations", answer.std[name], answer.error_of_std[name], std))
        for kind, value, error, right in triples:
            gap, error = (value - right).abs().reshape(len(mean), -1), error.reshape(len(mean), -1)
            certain = (error <= 1e-9) & (gap <= 1e-6)  # the same in all states of the chain
            parts[kind].append((gap <= Z * error, unknown & ~certain))
    for kind, pairs in parts.items():
        held, of = (torch.cat(each, 1) for each in zip(*pairs, strict=True))
        shares[kind].add(held, of)


def ask_intervals(name: str, number: int, seed: int, shares: dict[tuple[str, str], Share]) -> None:
    """One joint of a model, and the questions to it."""
    kind = MODELS[name]
    generator = torch.Generator().manual_seed(1_000_003 * seed + number)
    own = {each: shares[name, each] for each in KINDS}
    stop = STOPS[number // len(TURN) % len(STOPS)]
    ask(kind.make(generator), kind.rows, generator, own, stop=stop, regeneration=kind.regeneration, seed=number)


# --- ranks ------------------------------------------------------------------------------------------------------------


def ranks(true: Tensor, draws: Tensor, generator: torch.Generator) -> Tensor:
    """The rank of each true value `[n]` among draws `[n, draws]`; ties are broken at random."""
    below, ties = (draws < true[:, None]).sum(1), (draws == true[:, None]).sum(1)
    return below + (torch.rand(len(true), generator=generator) * (ties + 1)).long()


def uniformity(found: Tensor, draws: int = DRAWS, bins: int = BINS) -> float:
    """The p-value of a chi-square test that ranks 0 to `draws` are equally frequent."""
    counts = torch.bincount(found * bins // (draws + 1), minlength=bins).double()
    expected = len(found) / bins
    return float(scipy.stats.chi2.sf(float(((counts - expected) ** 2 / expected).sum()), bins - 1))


def ask_ranks(joint: joints.Cells, rows: int, generator: torch.Generator, seed: int) -> dict[str, Tensor]:
    """Ranks of true values among draws, by tours and by chains that never begin anew.

    Of every group of a question one unknown coordinate counts.
    """
    state = joint.draw(rows, generator)
    known = clamps(state, generator)
    often = {
        name: pc.Observed(*(part.repeat_interleave(DRAWS, 0) for part in (each.value, each.mask)))
        for name, each in asked(state, known).items()
    }
    found = {}
    for way, options in (("tours", {"regeneration": BRISK}), ("chains", {"sweeps": SWEEPS})):
        drawn = pc.sample(joint.model, often, seed=seed, **options)
        parts = [_ranks_of(state[n], known[n], drawn[n].unflatten(0, (rows, DRAWS)), generator) for n in state]
        found[way] = torch.cat(parts)
    return found


def _ranks_of(true: Tensor, known: Tensor, samples: Tensor, generator: torch.Generator) -> Tensor:
    """Ranks of one unknown coordinate of each row that has any; samples are `[rows, draws, *event]`."""
    rows = len(true)
    unknown = ~known.reshape(rows, -1)
    chosen = (torch.rand(unknown.shape, generator=generator) * unknown).argmax(1)
    every = torch.arange(rows)
    draws = samples.reshape(rows, samples.shape[1], -1)[every, :, chosen]
    some = unknown.any(1)
    return ranks(true.reshape(rows, -1)[every, chosen][some], draws[some], generator)


# --- the campaign -----------------------------------------------------------------------------------------------------


def run_families(rows: int, seed: int, repeats: int, shares: Mapping[str, Share]) -> Tally:
    """Rank every family, by tours and by chains, and count the intervals of tours."""
    tally = Tally("ranks", bad=["not uniform"])
    least = FAILURE_RATE / (2 * len(FAMILIES))
    for index, (name, family) in enumerate(FAMILIES.items()):
        found: dict[str, list[Tensor]] = defaultdict(list)
        for repeat in range(repeats):
            generator = torch.Generator().manual_seed(1_000_003 * seed + 1009 * index + repeat)
            joint = joints.emitting(generator, family)
            for way, part in ask_ranks(joint, rows, generator, seed + repeat).items():
                found[way].append(part)
            ask(joint, rows, generator, shares, stop=pc.Tours(64), regeneration=BRISK, seed=seed + repeat)
        for way, parts in found.items():
            p = uniformity(torch.cat(parts))
            tally.add("uniform" if p > least else "not uniform", f"{name} by {way}, --seed {seed}: p = {p:.1e}")
            print(f"  {name:18} {way:7} {sum(map(len, parts)):6,} ranks, p = {p:.3f}", flush=True)
    return tally


def table(shares: Mapping[tuple[str, str], Share]) -> str:
    """Coverage of every model and kind of answer, its error, and the number of answers."""
    lines = [f"{'joint':22} {'answers':20} coverage   error   number"]
    for (name, kind), share in shares.items():
        lines.append(f"{name:22} {kind:20} {share.value:8.4f} {share.error:7.4f} {share.number:8,}")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    options = parser(__doc__, count=15 * len(TURN), seconds=600)
    options.add_argument("--rows", type=int, default=150, help="questions to each joint of the ranks")
    chosen = options.parse_args(arguments)
    began = time.monotonic()
    shares: dict[tuple[str, str], Share] = defaultdict(Share)
    of_families: dict[str, Share] = {kind: shares["every family", kind] for kind in KINDS}
    tally = run_families(chosen.rows, chosen.seed, REPEATS, of_families)
    left = chosen.seconds - (time.monotonic() - began)
    for number in trials(chosen.count, left):
        ask_intervals(TURN[number % len(TURN)], number, chosen.seed, shares)
    shares = {key: share for key, share in shares.items() if share.asked and share.number}
    print(tally, table(shares), sep="\n")
    values = [share.value for share in shares.values()]
    worst = max(share.error for share in shares.values())
    about = f"{len(values)} joints and kinds of answers, {sum(s.number for s in shares.values()):,} intervals; "
    about += f"errors up to {worst:.4f}"
    metrics = [
        Metric("coverage_min", round(min(values), 4), "higher", goal=0.93, about=about),
        Metric("coverage_max", round(max(values), 4), "lower", goal=0.97, about=about),
        Metric("sbc_failures", tally.failures, "lower", goal=0, about=f"of {tally.total} sets of ranks"),
    ]
    config = {key: value for key, value in vars(chosen).items() if key != "out"}
    write("calibration", metrics, time.monotonic() - began, config, chosen.out)


if __name__ == "__main__":
    main()
