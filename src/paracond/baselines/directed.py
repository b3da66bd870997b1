"""Directed models p(z) p(x | z, c) with an encoder q(z | x, c), on the conditionals of a joint model (section 5.5).

The prior p(z) is fixed, uniform for a Binary z and standard normal for a Real one, or for a `VAE` that of the codes of
some examples (`priors`). Everything may be given context c.

`VAE` (Kingma & Welling 2014) ascends, in both conditionals, the bound

    log p(x | c) >= ELBO = E_q(z | x, c) log p(x | z, c) - KL(q(z | x, c) | p(z)),

with KL in closed form where the prior is fixed, and the gradient of E_q log p(x | z, c) estimated (`estimators`).

`Symmetric` equilibrium learning (Flach et al. 2024): decoder and encoder each ascend their own utility,

    decoder: E_data(x, c) E_q(z | x, c) log p(x | z, c),      encoder: E_data(c) E_p(z) E_p(x | z, c) log q(z | x, c),

and both log p(x | z, c) and log q(z | x, c) on pairs, where the data have z. Where no example has z, this is wake-sleep
(Hinton et al. 1995) with a fixed prior: the first is the wake phase, the second the sleep phase.

What either learns is a `JointModel` like any other. From it, images come in two ways: by a random code, z ~ p(z) and
x ~ p(x | z, c) (`random_code`), and by the limit of the chain that alternates both conditionals (`inference.sample`).
`special_cases.symmetric_equilibrium` is the same game by Algorithm 1, which completes a batch of both kinds; here each
conditional is asked only for what the other learns from, and the prior is drawn afresh.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from paracond.baselines.estimators import estimators_of
from paracond.baselines.priors import Fixed, Prior, Vamp
from paracond.chain import transition
from paracond.data import Data, InputError, State, as_count, at_least, named, one_of, take
from paracond.distributions import Distribution
from paracond.families import Binary, Real
from paracond.memory import require_room, row_bytes
from paracond.model import JointModel
from paracond.training.completion import Augment, Completion, CompletionOptions
from paracond.training.trainer import Trainer, fingerprint, modes_kept

DRAWN, SCORED = 2000, 1000  # rows at a time

# --- the prior --------------------------------------------------------------------------------------------------


def prior_of(model: JointModel, latent: str, examples: Data | None) -> Prior:
    """That of the codes of `examples`, or the fixed one."""
    family = _latent_family(model, latent)
    if examples is None:
        return Fixed(family)
    if not isinstance(examples, Data):
        raise InputError(f"prior must be Data, examples whose codes are the prior, found {type(examples).__name__}")
    x = next(name for name in _two_groups(model) if name != latent)
    state, known = model.validate(examples.state, examples.mask)
    if not bool(known[x].all()) or bool(known[latent].any()):
        raise InputError(f"examples for a prior must have {x!r} everywhere, and lack {latent!r}")
    return Vamp(state)


@torch.no_grad()
def random_code(
    model: JointModel,
    latent: str,
    given: Mapping[str, Tensor],
    *,
    prior: Data | None = None,
    rows: int = 1,
    seed: int = 0,
) -> State:
    """Draws z ~ p(z), x ~ p(x | z, c), one for each row of what is `given` (the context c), or `rows`. `prior` is as
    in `VAE`."""
    names = _two_groups(model)
    one_of("the latent", latent, names)
    given = named("given", given)
    for name in given:
        model.check_names([name])
        if name in names:
            raise InputError(f"a random code draws {name!r}: only context can be given")
    rows = as_count("rows", rows)
    require_room(f"rows={rows}", 2 * rows * row_bytes(model), model.device)
    x = next(name for name in names if name != latent)
    generator = model.generator(seed)
    state, _ = model.validate(dict(given), rows=rows)
    asked, codes = model.eval_copy(), prior_of(model, latent, prior)
    state[latent] = codes.sample(lambda examples: asked(latent, examples), len(state[x]), generator, model.dtype)
    parts = [slice(first, first + DRAWN) for first in range(0, len(state[x]), DRAWN)]
    drawn = [asked(x, take(state, part)).sample(generator) for part in parts]
    return {**state, x: torch.cat(drawn)}


def _two_groups(model: JointModel) -> tuple[str, ...]:
    if not isinstance(model, JointModel) or len(model.names) != 2:
        raise InputError("a directed model needs a JointModel of two groups with conditionals, and context if any")
    return model.names


def _latent_family(model: JointModel, name: str) -> Binary | Real:
    """Its `random` draws from the prior."""
    family = model.variables[name]
    if not isinstance(family, (Binary, Real)):
        raise InputError(f"there is a prior for Binary and Real latents; {name!r} is {family}")
    return family


@torch.no_grad()
def elbo(model: JointModel, data: Data, *, prior: Data | None = None, draws: int = 1, seed: int = 0) -> Tensor:
    """The ELBO of every example, `[rows]`, with expectations under q that are not in closed form averaged over `draws`
    draws of z. `prior` is as in `VAE`."""
    at_least({"draws": (draws, 1)})
    x, z = roles(model, data)
    generator, found, codes = model.generator(seed), [], prior_of(model, z, prior)
    asked = model.eval_copy()
    log_prior = codes.log_prob(lambda examples: asked(z, examples))
    for first in range(0, len(data), SCORED):
        part = data[first : first + SCORED]
        state, _ = model.validate(part.state, part.mask)
        q = asked(z, state)
        drawn = [q.sample(generator) for _ in range(draws)]
        scores = [asked(x, {**state, z: code}).log_prob(state[x]) for code in drawn]
        if log_prior is not None:
            scores += [log_prior(code) for code in drawn]
        found.append(torch.stack(scores).sum(0) / draws - codes.charge(q))
    return torch.cat(found)


def roles(model: JointModel, data: Data) -> tuple[str, str]:
    """The names of x, which the data have everywhere, and of z, which they lack in all rows or in some."""
    names = _two_groups(model)
    if not isinstance(data, Data):
        raise InputError(f"a directed model learns from Data(values, mask), found {type(data).__name__}")
    known = {n: n in data.mask and bool(data.mask[n].all()) for n in names}
    if sum(known.values()) != 1:
        raise InputError(f"the data must have one of {', '.join(names)} everywhere and lack the other in places")
    x, z = sorted(names, key=lambda name: not known[name])
    _latent_family(model, z)
    return x, z


# --- learners ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Info:
    """One update of both conditionals: their losses by name, means over the batch, as tensors.

    `VAE`: -E_q log p(x | z, c) of x, and the divergence of z; they add up to -ELBO. (With a prior of examples
    -E_q log p(z) counts with the former, and the latter is -H(q).) `Symmetric`: -log p(x | z, c) and
    -log q(z | x, c), each on what it learns from."""

    step: int
    losses: dict[str, Tensor]


class Directed(Trainer[Info]):
    """A learner of both conditionals at once, on fresh examples at every update.

    options: batch_size, learning_rate, optimiser, average, engine and seed, as in `Learner`.
    """

    def __init__(self, model: JointModel, data: Data, *, augment: Augment | None = None, **options: Any):
        self.x, self.z = roles(model, data)
        with modes_kept(model):
            super().__init__(model, data, **options)
            if any(self.learns_init.values()):
                raise InputError(
                    f"a {type(self).__name__} does not train initializers: call initializers.fit(model, data) first"
                )
            steps = CompletionOptions(steps=0)
            self.completion = Completion(model, data, self.batch_size, steps, augment, self.rounded, self.resources)
        self.source = self.completion
        self.batch, self.family = self.completion.pool, _latent_family(model, self.z)
        self.update = self.engine.program(self._update, self.generator)

    def identity(self) -> dict[str, Any]:
        return super().identity() | {"method": type(self).__name__}

    def step(self) -> Info:
        """One update of both conditionals."""
        rates = self._rates_now()
        self.guard.raise_if_seen(self.step_count)
        self.completion.fill()
        for name in self.model.names:
            self._set_rates(name, rates)
        self.update()
        for name in self.model.names:
            self.updates[name] += 1
        self.step_count += 1
        return Info(self.step_count, {name: loss.clone() for name, loss in self.losses.items()})

    def _update(self) -> None:
        self.rounded.refresh()
        terms = self._terms()
        names = self.model.names
        norms = self._gradients(terms[self.x] + terms[self.z], names)
        checks = [self.guard.check(n, {"the loss": terms[n].detach(), "the gradient": norms[n]}) for n in names]
        self._descend(names, checks[-1])
        with torch.no_grad():
            for name, term in terms.items():
                self.losses[name].copy_(term)
            self.guard.tick()

    @abstractmethod
    def _terms(self) -> dict[str, Tensor]:
        """What to descend, as a sum of one mean over the batch for each conditional."""

    def _given(self, name: str, state: State) -> Distribution:
        with self.engine.precision():
            return self.rounded.model(name, state)


class VAE(Directed):
    """`estimator` is that of the gradient under q (see `estimators`). If not given: that with the best ELBO.

    `prior`: examples whose codes are the prior (`priors.Vamp`; a few hundred: all are encoded at every update). If not
    given: the fixed one."""

    def __init__(
        self, model: JointModel, data: Data, *, estimator: str | None = None, prior: Data | None = None, **options
    ):
        super().__init__(model, data, **options)
        allowed = estimators_of(self.family)
        estimator = next(iter(allowed)) if estimator is None else estimator
        one_of(f"the estimator for {self.family}", estimator, tuple(allowed))
        if estimator == "exact" and self.engine.captures:
            raise InputError('the estimator "exact" is for few bits, as an oracle: use engine="eager"')
        if bool(self.completion.observed[self.z].any()):
            raise InputError(f"{self.z!r} is observed in places: a VAE has no use for that, Symmetric has")
        self.estimator, self.expectation = estimator, allowed[estimator]
        self.prior = prior_of(model, self.z, prior)

    def identity(self) -> dict[str, Any]:
        found = {**super().identity(), "estimator": self.estimator}
        if isinstance(self.prior, Vamp):
            examples = Data(self.prior.examples)
            found["prior"] = f"{len(examples)} examples ({fingerprint(examples.state, examples.mask)})"
        return found

    def _terms(self) -> dict[str, Tensor]:
        q = self._given(self.z, self.batch)
        log_prior = self.prior.log_prob(lambda examples: self._given(self.z, examples))

        def scores(z: Tensor) -> Tensor:
            return self._scores(z) if log_prior is None else self._scores(z) + log_prior(z)

        expected = self.expectation(q, scores, self.generator)
        return {self.x: -expected.mean(), self.z: self.prior.charge(q).mean()}

    def _scores(self, z: Tensor) -> Tensor:
        """log p(x | z, c), where z has every row of the batch once, or all of them several times."""
        again = torch.arange(len(z), device=z.device) % self.batch_size
        state = take(self.batch, again) if len(z) > self.batch_size else self.batch
        return self._given(self.x, {**state, self.z: z}).log_prob(state[self.x])


class Symmetric(Directed):
    """The two-player game; wake-sleep where the data never have z.

    completed_by: "model" or "average": whose encoder completes the data for the decoder.
    """

    def __init__(self, model: JointModel, data: Data, *, completed_by: str = "model", **options):
        super().__init__(model, data, **options)
        one_of("completed_by", completed_by, ("model", "average"))
        self.by = self.model if completed_by == "model" else self.averaged
        self.completing = self._rounded_of(self.by)

    def _terms(self) -> dict[str, Tensor]:
        awake, asleep = self._awake(), self._asleep()
        decoder = self._given(self.x, awake).log_prob(awake[self.x])
        encoder = self._given(self.z, asleep).log_prob(asleep[self.z])
        if self._has_pairs:  # these too, as many as there are
            scores = self._given(self.z, awake).scores(awake[self.z])
            encoder = encoder + (scores * self.completion.mask[self.z]).flatten(1).sum(1)
        return {self.x: -decoder.mean(), self.z: -encoder.mean()}

    @property
    def _has_pairs(self) -> bool:
        return self.completion.patterns.get(self.z, False) is not False

    @torch.no_grad()
    def _awake(self) -> State:
        """The data, completed by the encoder."""
        known = self.completion.mask[self.z] if self._has_pairs else None
        if self.completing is not self.rounded:  # which is up to date
            self.completing.refresh(self.by.conditional(self.z))
        with self.engine.precision():
            move = transition(self.completing.model, self.z, self.batch, known, self.generator)
        return {**self.batch, self.z: move.value}

    @torch.no_grad()
    def _asleep(self) -> State:
        """The prior, completed by the decoder, given the data's context."""
        z = self.family.random(self.batch_size, self.generator, self.model.dtype)
        state = {**self.batch, self.z: z}
        return {**state, self.x: self._given(self.x, state).sample(self.generator)}
