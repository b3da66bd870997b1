"""K(x | x') = (1 - eps) G(x | x') + eps b(x), b = p_0 G^w: every statement about it, for small random models.

What is expected is computed from dense matrices, powers and long sums, not by the oracle's own way. Statistical tests
have the failure rate of `helpers`, at fixed seeds.
"""

import itertools
import math
import time

import pytest
import torch
from helpers import Pairwise, assert_fits, random_joint, random_tables, state_index, table_model
from hypothesis import given, settings
from hypothesis import strategies as st

import paracond as pc
from paracond import exact
from paracond.exact import GibbsKernel, MatrixKernel, Regenerative, sweep

properties = settings(deadline=None, max_examples=20, derandomize=True)
SHAPES = st.sampled_from([(2, 2), (3, 2), (2, 3, 2), (2, 2, 2, 2), (4, 3)])
SEEDS = st.integers(0, 2**31)
STRENGTHS = st.sampled_from([0.3, 1.0, 2.0])
RATES = st.sampled_from([0.01, 0.1, 0.5, 1.0])
WARMUPS = st.sampled_from([0, 1, 5])
KINDS = st.sampled_from(["step", "systematic", "random"])


def weights(shape, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.softmax(torch.randn(len(shape), generator=generator, dtype=torch.float64), 0).tolist()


def gibbs(shape, seed, strength=1.0, kind="step"):
    """One step of a random inconsistent Gibbs kernel, or a sweep of it."""
    kernel = GibbsKernel(random_tables(shape, seed, strength), weights(shape, seed))
    return kernel if kind == "step" else sweep(kernel, kind)


def with_zeros(p, seed, axis=None):
    """A distribution (with an axis: conditionals) of which about half is zero."""
    keep = torch.rand(p.shape, generator=torch.Generator().manual_seed(seed)) < 0.5
    first = torch.zeros(p.numel() if axis is None else p.shape[axis], dtype=torch.bool)
    first[0] = True  # something is left
    shape = p.shape if axis is None else [-1 if a == axis else 1 for a in range(p.ndim)]
    p = torch.where(keep | first.view(shape), p, 0)
    return p / (p.sum() if axis is None else p.sum(axis, keepdim=True))


def anew(kernel, rate=0.1, warmup=0, seed=7, begin=None):
    begin = random_joint(kernel.shape, seed, 2.0) if begin is None else begin
    return Regenerative(kernel, begin, pc.Regeneration(rate, warmup))


def dense(k):
    """K and b, from the matrix of G alone."""
    g = k.kernel.matrix()
    b = k.begin.flatten() @ torch.linalg.matrix_power(g, k.regeneration.warmup)
    return (1 - k.rate) * g + k.rate * b, b


def long_sum(g, b, rate):
    """sum_k eps (1 - eps)^k b G^k, until nothing is left of it; (b is a distribution, g a matrix)."""
    total, law, weight = torch.zeros_like(b), b, rate
    while weight > 1e-17 * rate:
        total, law, weight = total + weight * law, law @ g, weight * (1 - rate)
    return total


def distance(p, q):
    """Total variation: half of the sum of differences."""
    return 0.5 * float((p - q).abs().sum())


def contraction(g):
    """Dobrushin's coefficient: G brings any two distributions nearer by this factor, at least."""
    return 0.5 * float((g[:, None] - g[None]).abs().sum(2).max())


# --- the oracle -------------------------------------------------------------------------------------------------


@given(SHAPES, SEEDS, RATES, WARMUPS, KINDS)
@properties
def test_it_is_the_definition(shape, seed, rate, warmup, kind):
    k = anew(gibbs(shape, seed, kind=kind), rate, warmup)
    expected, b = dense(k)
    r = random_joint(shape, seed + 1)
    torch.testing.assert_close(k.warmed.flatten(), b, rtol=0, atol=1e-14)
    torch.testing.assert_close(k.matrix(), expected, rtol=0, atol=1e-14)
    torch.testing.assert_close(k.push(r).flatten(), r.flatten() @ expected, rtol=0, atol=1e-14)
    difference = r - random_joint(shape, seed + 2)  # push is linear, also where the sum is not one
    torch.testing.assert_close(k.push(difference).flatten(), difference.flatten() @ expected, rtol=0, atol=1e-14)


def scores(data, q, p):
    """sum_x,x' data(x) q(x' | x) log q(x' | x) and log p(x | x'), term by term; 0 log 0 = 0."""
    forward = backward = 0.0
    q, p, data = q.matrix().tolist(), p.matrix().tolist(), data.flatten().tolist()
    for a, b in itertools.product(range(len(data)), repeat=2):
        flow = data[a] * q[a][b]
        if flow > 0:
            forward += flow * math.log(q[a][b])
            backward += flow * (math.log(p[b][a]) if p[b][a] > 0 else -math.inf)
    return forward, backward


@given(
    st.sampled_from([(3,), (1, 3), (2, 1, 2), (1, 1), (2, 2), (2, 3, 2), (2, 2, 2, 2)]),
    SEEDS,
    st.tuples(*[st.sampled_from(["gibbs", "anew", "sparse", "sparse anew", "sweep anew"])] * 2),
    st.booleans(),
)
@settings(properties, max_examples=60)
def test_scores_need_no_matrix(shape, seed, kinds, some):
    """With one group, groups of one value, and zeros; where a kernel has no `Steps`, by the matrix."""

    def make(kind, seed):
        tables = random_tables(shape, seed)
        if "sparse" in kind:
            tables = [with_zeros(table, seed + axis, axis) for axis, table in enumerate(tables)]
        g = GibbsKernel(tables, weights(shape, seed))
        begin = random_joint(shape, seed + 1)
        begin = with_zeros(begin, seed + 2) if "sparse" in kind else begin
        g = sweep(g) if "sweep" in kind else g
        return anew(g, 0.2, 0, begin=begin) if "anew" in kind else g

    q, p = make(kinds[0], seed), make(kinds[1], seed + 10)
    data = random_joint(shape, seed + 20)
    data = with_zeros(data, seed + 21) if some else data
    forward, backward = scores(data, q, p)
    assert float(q.forward_score(data)) == pytest.approx(forward, abs=1e-12)
    assert float(q.backward_score(data, p)) == pytest.approx(backward, abs=1e-12)


def test_a_clamp_may_contradict_a_conditional():
    """A clamped group is never redrawn, so it matters nothing that its value had no chance."""
    a, b = random_tables((2, 3), 0)
    a = torch.stack([torch.zeros(3), torch.ones(3)]).double()
    clamped = GibbsKernel([a, b], [0.5, 0.5]).restrict([torch.tensor([0]), torch.arange(3)])
    torch.testing.assert_close(exact.limiting(clamped), b[:1])


def test_scores_of_a_clamped_chain():
    """One group is free: every other has one value."""
    kernel = gibbs((2, 3, 2), 0).restrict([torch.tensor([1]), torch.arange(3), torch.tensor([0])])
    k = anew(kernel, 0.2)
    data = random_joint(kernel.shape, 1)
    for q, p in itertools.product((kernel, k), repeat=2):
        assert (float(q.forward_score(data)), float(q.backward_score(data, p))) == pytest.approx(scores(data, q, p))


@given(SHAPES, SEEDS, STRENGTHS, RATES, KINDS)
@properties
def test_large_spaces_are_solved_without_a_matrix(shape, seed, strength, rate, kind):
    """The way of large spaces, on small ones."""
    kernel = gibbs(shape, seed, strength, kind)
    with pytest.MonkeyPatch.context() as patch:
        for each in (kernel, anew(kernel, rate, 1)):
            patch.setattr(exact.limits, "DENSE", 1024)
            expected = exact.limiting(each)
            patch.setattr(exact.limits, "DENSE", 1)
            torch.testing.assert_close(exact.limiting(each), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("limit", [1, 1024])
def test_states_that_are_never_visited_have_exactly_zero(limit, monkeypatch):
    """Group a never returns to 0; a log of what rounding leaves would be finite."""
    monkeypatch.setattr(exact.limits, "DENSE", limit)
    a, b = random_tables((3, 4), 0)
    a[0] = 0
    kernel = GibbsKernel([a / a.sum(0), b], [0.5, 0.5])
    begin = torch.zeros(3, 4, dtype=torch.float64)
    begin[1:] = 1 / 8
    for each in (kernel, sweep(kernel), anew(kernel, begin=begin)):
        p = exact.limiting(each)
        assert bool((p[0] == 0).all()) and bool((p[1:] > 0).all())
    data = torch.full((3, 4), 1 / 12, dtype=torch.float64)
    assert float(exact.likelihood(data, kernel)) == -math.inf
    left = GibbsKernel([a[1:] / a[1:].sum(0), b[1:]], [0.5, 0.5])
    for each in (kernel, GibbsKernel([kernel.tables[1].T, kernel.tables[0].T], [0.5, 0.5])):  # in any order of groups
        assert exact.consistency_gap(each) == pytest.approx(exact.consistency_gap(left))
    assert exact.detailed_balance_gap(anew(kernel, begin=begin)) < math.inf
    assert bool((exact.limiting(anew(kernel)) > 0).all())  # begun everywhere, it is seen everywhere
    once = torch.zeros(3, 4, dtype=torch.float64)
    once[1] = 1 / 4
    assert exact.detailed_balance_gap(anew(kernel, begin=once)) == math.inf  # no jump to a = 2, but many from it


# --- one limit, forgotten at a known rate -----------------------------------------------------------------------


@given(SHAPES, SEEDS, RATES, WARMUPS, KINDS, st.booleans())
@properties
def test_there_is_one_limit_for_any_conditionals(shape, seed, rate, warmup, kind, sparse):
    """Also where G has several closed classes: 1 is a simple eigenvalue, and every beginning leads to pi."""
    tables = random_tables(shape, seed, 2.0)
    if sparse:
        tables = [with_zeros(table, seed + axis, axis) for axis, table in enumerate(tables)]
    g = GibbsKernel(tables, weights(shape, seed))
    k = anew(g if kind == "step" else sweep(g, kind), rate, warmup, begin=with_zeros(random_joint(shape, 3), seed))
    pi, (matrix, _) = exact.limiting(k).flatten(), dense(k)
    moduli = torch.linalg.eigvals(matrix).abs().sort(descending=True).values
    assert float(moduli[1]) <= 1 - rate + 1e-7  # defective zeros are found to the root of the rounding
    far = torch.linalg.matrix_power(matrix, math.ceil(40 / rate))  # (1 - eps)^(40 / eps) < 1e-17
    torch.testing.assert_close(far, pi.expand_as(far), rtol=0, atol=1e-12)
    torch.testing.assert_close(pi @ matrix, pi, rtol=0, atol=1e-13)


@given(SHAPES, SEEDS, RATES, WARMUPS, KINDS)
@properties
def test_the_beginning_is_forgotten_like_one_minus_eps_to_the_n(shape, seed, rate, warmup, kind):
    """TV(K^n(x', .), pi) <= (1 - eps)^n. More exactly, K brings two distributions nearer by 1 - eps times what G
    does."""
    k = anew(gibbs(shape, seed, 2.0, kind), rate, warmup)
    pi, (matrix, _), g = exact.limiting(k).flatten(), dense(k), k.kernel.matrix()
    for n in (1, 2, 5, 20):
        after, without = torch.linalg.matrix_power(matrix, n), torch.linalg.matrix_power(g, n)
        worst = max(distance(row, pi) for row in after)
        assert worst <= (1 - rate) ** n + 1e-13
        for a, b in ((0, -1), (1, 2)):
            expected = (1 - rate) ** n * distance(without[a], without[b])
            assert distance(after[a], after[b]) == pytest.approx(expected, abs=1e-13)
        assert worst <= (1 - rate) ** n * contraction(without) + 1e-13


def test_the_bound_is_reached_where_g_does_not_move():
    """Where G keeps every state, nothing else forgets; the limit is b."""
    k = anew(MatrixKernel(torch.eye(5, dtype=torch.float64)), 0.2, begin=torch.eye(5, dtype=torch.float64)[0])
    after = torch.linalg.matrix_power(k.matrix(), 7)
    assert distance(after[1], exact.limiting(k)) == pytest.approx(0.8**7, abs=1e-14)


@given(SHAPES, SEEDS, STRENGTHS, RATES, WARMUPS, KINDS)
@properties
def test_the_limit_is_the_geometric_mixture(shape, seed, strength, rate, warmup, kind):
    """pi = sum_k eps (1 - eps)^k b G^k: where a tour of geometric age is."""
    k = anew(gibbs(shape, seed, strength, kind), rate, warmup)
    _, b = dense(k)
    torch.testing.assert_close(
        exact.limiting(k).flatten(), long_sum(k.kernel.matrix(), b, rate), rtol=1e-10, atol=1e-14
    )


@given(SHAPES, SEEDS, STRENGTHS, RATES)
@properties
def test_its_second_eigenvalue_is_that_of_g_times_one_minus_eps(shape, seed, strength, rate):
    g = gibbs(shape, seed, strength)
    assert exact.mixing_rate(anew(g, rate)) == pytest.approx((1 - rate) * exact.mixing_rate(g), abs=1e-7)


def test_the_second_eigenvalue_of_large_kernels():
    """Found without a matrix. Where G is reducible, 1 is a double eigenvalue of G and only eps is left."""
    joint = random_joint((64,), 0)[:, None] * random_joint((64,), 1)[None]
    independent = GibbsKernel(exact.conditionals(joint), [0.7, 0.3])
    assert exact.mixing_rate(anew(independent, 0.1)) == pytest.approx(0.9 * 0.7, abs=1e-7)
    g = majority(11)
    assert exact.mixing_rate(g) == pytest.approx(1, abs=1e-7)
    assert exact.mixing_rate(anew(g, 0.1)) == pytest.approx(0.9, abs=1e-7)


def majority(groups):
    """Each group takes the value of most others, by a coin where they disagree evenly: all 0 and all 1 are closed."""
    shape = (2,) * groups
    spins = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0])] * groups).view(*shape, groups).double()
    tables = []
    for i in range(groups):
        field = (spins.sum(-1) - spins[..., i]) * spins[..., i]
        tables.append((field.sign() + 1) / 2)
    return GibbsKernel(tables, [1 / groups] * groups)


@pytest.mark.parametrize("kind", ["step", "systematic"])
@pytest.mark.parametrize("groups", [5, 11], ids=["dense", "without a matrix"])
def test_a_limit_where_the_gibbs_kernel_has_two(kind, groups):
    """Two closed classes: the limit of G is refused, that of K says how often tours from b end up in each."""
    g = majority(groups) if kind == "step" else sweep(majority(groups))
    with pytest.raises(pc.InputError, match="every state from every other"):
        exact.limiting(g)
    begin = random_joint(g.shape, 0)
    k = anew(g, 0.05, 2, begin=begin)
    total, law, weight = torch.zeros_like(begin), k.warmed, 0.05
    while weight > 1e-18:
        total, law, weight = total + weight * law, g.push(law), weight * 0.95
    torch.testing.assert_close(exact.limiting(k), total, rtol=0, atol=1e-12)
    ends = [float(total.flatten()[0]), float(total.flatten()[-1])]
    assert min(ends) > 0.1 and abs(ends[0] - ends[1]) > 1e-4  # both, and not evenly


def test_what_rounding_hides_is_refused():
    """Two states that are hardly ever left: which is likelier is known only if leaving them is not lost in rounding."""

    def pair(leave):
        return MatrixKernel(torch.tensor([[1 - leave, leave], [2 * leave, 1 - 2 * leave]], dtype=torch.float64))

    torch.testing.assert_close(exact.limiting(pair(1e-7)), torch.tensor([2, 1]).double() / 3, rtol=0, atol=1e-7)
    with pytest.raises(pc.InputError, match="the chain cannot, or hardly ever, reach"):
        exact.limiting(pair(1e-14))
    begin = torch.tensor([0.9, 0.1], dtype=torch.float64)
    torch.testing.assert_close(exact.limiting(anew(pair(1e-14), begin=begin)), begin)


@given(SHAPES, SEEDS, STRENGTHS, WARMUPS, KINDS)
@properties
def test_a_small_rate_is_the_papers_kernel(shape, seed, strength, warmup, kind):
    """pi - pi_G = eps (b - pi_G)(I - (1 - eps) G)^-1. With d the contraction of a sweep,
    TV(pi, pi_G) <= TV(p_0, pi_G) eps d^w / (1 - (1 - eps) d), which falls to zero with eps, and like d^w with w."""
    g = gibbs(shape, seed, strength, kind)
    g = sweep(g, "systematic") if kind == "step" else g  # one step of a random scan need not contract at all
    limit, d = exact.limiting(g), contraction(g.matrix())
    gaps = []
    for rate in (0.5, 0.05, 1e-3, 1e-6):
        k = anew(g, rate, warmup)
        gaps.append(distance(exact.limiting(k), limit))
        assert gaps[-1] <= distance(k.begin, limit) * rate * d**warmup / (1 - (1 - rate) * d) + 1e-13
    if d < 1 - 1e-3:
        assert gaps[-1] < 1e-3
    assert distance(exact.limiting(anew(g, 1.0, warmup)), anew(g, 1.0, warmup).warmed) < 1e-14  # and eps = 1 is b


# --- section 3 with K in the place of p and q -------------------------------------------------------------------


@given(st.sampled_from([(2, 2), (3, 2), (2, 2, 2)]), SEEDS, st.sampled_from([0.05, 0.3]), WARMUPS)
@settings(properties, max_examples=10)
def test_proposition_zero_with_a_known_alpha(shape, seed, rate, warmup):
    """P:zero: |grad sum q_n(x) log p_theta(x)|_1 <= C alpha^n, here with alpha = 1 - eps and
    C = 2 max_x |grad log p_theta(x)|_1 / (1 - eps); b depends on theta as well."""
    logits = [(4 * t.log()).requires_grad_() for t in random_tables(shape, seed)]
    tables = [torch.softmax(t, i) for i, t in enumerate(logits)]
    size, alpha = tables[0].numel(), weights(shape, seed)
    unit = torch.eye(size, dtype=torch.float64).view(size, *shape)
    g = sum(a * t * unit.sum(i + 1, keepdim=True) for i, (a, t) in enumerate(zip(alpha, tables, strict=True)))
    g = g.reshape(size, size)
    b = random_joint(shape, 7, 2.0).flatten() @ torch.linalg.matrix_power(g, warmup)
    pi = torch.linalg.solve((torch.eye(size, dtype=torch.float64) - (1 - rate) * g).T, rate * b)
    k = anew(GibbsKernel([t.detach() for t in tables], alpha), rate, warmup)
    torch.testing.assert_close(pi.detach(), exact.limiting(k).flatten(), rtol=1e-9, atol=1e-13)

    def gradient(value):
        return torch.cat([x.flatten() for x in torch.autograd.grad(value, logits, retain_graph=True)])

    each = torch.stack([gradient(value) for value in pi.log()])  # of log p_theta at every x
    constant = 2 * float(each.abs().sum(1).max()) / (1 - rate)
    law = random_joint(shape, seed + 2)
    for n in range(1, 60):
        assert float((law.flatten() @ each).abs().sum()) <= constant * (1 - rate) ** n + 1e-10
        law = k.push(law)


@given(SHAPES, SEEDS, st.integers(1, 6), st.sampled_from([0.02, 0.3]), WARMUPS)
@properties
def test_the_bound_on_the_likelihood(shape, seed, n, rate, warmup):
    """prop:KL for K in the place of p, of q and of both: L_B = L - sum_k KL(q || p^r) <= L, and tight for q = p^r."""
    k = anew(gibbs(shape, seed), rate, warmup)
    other = anew(gibbs(shape, seed + 1), 2 * rate, warmup, seed=8)
    data = random_joint(shape, seed + 2)
    for p, q in ((k, k), (k, other), (k, other.kernel), (k.kernel, other)):
        limit, forward = exact.limiting(p).flatten(), q.matrix()
        if p is k:
            limit = long_sum(k.kernel.matrix(), dense(k)[1], rate)
        backward = p.matrix().T * limit / limit[:, None]  # [x, x'], the reverse kernel
        terms = torch.where(forward > 0, forward * (forward / backward).log(), 0).sum(1)
        law, total = data.flatten(), 0.0
        for _ in range(n):
            total, law = total + float(law @ terms), law @ forward
        likelihood = float(data.flatten() @ limit.log())
        found = float(exact.lower_bound(data, p, q, n))
        assert float(exact.likelihood(data, p)) == pytest.approx(likelihood, abs=1e-9)
        assert found == pytest.approx(likelihood - total, abs=1e-9)
        assert found <= likelihood + 1e-9
    reverse = exact.reverse(k)
    whole = MatrixKernel(k.matrix())
    tight = exact.lower_bound(data.flatten(), whole, reverse, n)
    assert float(tight) == pytest.approx(float(exact.likelihood(data, k)), abs=1e-9)


@given(SHAPES, SEEDS, st.sampled_from([0.1, 0.5]), WARMUPS)
@properties
def test_the_reverse_kernel(shape, seed, rate, warmup):
    """pi(x) K^r(x' | x) = pi(x') K(x | x'): in reverse, K also begins anew, but where depends on the state."""
    k = anew(gibbs(shape, seed), rate, warmup)
    pi, reverse = exact.limiting(k).flatten(), exact.reverse(k).transition
    matrix, b = dense(k)
    torch.testing.assert_close(pi[:, None] * reverse, (pi[:, None] * matrix).T, rtol=0, atol=1e-13)
    torch.testing.assert_close(reverse.sum(1), torch.ones(len(pi), dtype=torch.float64))
    within = (1 - rate) * k.kernel.matrix().T * pi / pi[:, None]
    torch.testing.assert_close(reverse, within + rate * (b / pi)[:, None] * pi, rtol=1e-9, atol=1e-13)


@given(SHAPES, SEEDS, st.sampled_from([0.1, 0.5]))
@properties
def test_approximations_of_the_bound_are_ordered(shape, seed, rate):
    """Prop:hatF for K: F-hat - L_B -> H and F - L_B -> I, within (1 - eps)^n, known beforehand."""
    k = anew(gibbs(shape, seed), rate)
    p, data, n = exact.limiting(k), random_joint(shape, seed + 2), math.ceil(math.log(1e-13) / math.log(1 - rate))
    bound, f, f_hat = (float(fn(data, k, k, n)) for fn in (exact.lower_bound, exact.f, exact.f_hat))
    entropy = -float(torch.xlogy(p, p).sum())
    pair = p.flatten()[:, None] * k.matrix()
    assert f_hat - bound == pytest.approx(entropy, abs=1e-8)
    assert f - bound == pytest.approx(float(torch.xlogy(pair, pair).sum()) + 2 * entropy, abs=1e-8)


# --- detailed balance -------------------------------------------------------------------------------------------


def jeffreys(p, q):
    return float(((p - q) * (p / q).log()).sum())


MORE_THAN_FOUR = st.sampled_from([(3, 2), (2, 3, 2), (2, 2, 2, 2), (4, 3)])


@given(MORE_THAN_FOUR, SEEDS, STRENGTHS, st.sampled_from([0.02, 0.3]), WARMUPS)
@properties
def test_detailed_balance_needs_consistency_and_the_joint_to_begin_at(shape, seed, strength, rate, warmup):
    """Theorem T1 for K, with more than four states: balance iff the conditionals are consistent and b is their joint.
    Moves of several groups at once come from b alone, so balance there makes b = pi."""
    joint = random_joint(shape, seed, strength)
    consistent = GibbsKernel(exact.conditionals(joint), weights(shape, seed))
    k = anew(consistent, rate, warmup, begin=joint)
    flow = exact.limiting(k).flatten()[:, None] * dense(k)[0]
    assert float((flow - flow.T).abs().max()) < 1e-13
    assert abs(exact.detailed_balance_gap(k)) < 1e-11
    inconsistent = gibbs(shape, seed, strength)
    for other in (
        anew(consistent, rate, warmup),
        anew(inconsistent, rate, warmup),
        anew(inconsistent, rate, warmup, begin=exact.limiting(inconsistent)),
    ):
        flow = exact.limiting(other).flatten()[:, None] * dense(other)[0]
        assert float((flow - flow.T).abs().max()) > 1e-8
        assert exact.detailed_balance_gap(other) > 1e-12


def test_two_bits_are_the_exception():
    """No moves of both groups join 00 and 01. There K may be in balance though b is not its limit and the conditionals
    are not consistent: G takes back what b brings too much of."""
    rate, alpha, pi = 0.2, [0.3, 0.7], random_joint((2, 2), 0)
    more = 0.1 * torch.tensor([[1.0, -1.0], [-1.0, 1.0]], dtype=torch.float64)
    b = pi * (1 + more - (pi * more).sum())
    tables = []
    for axis in range(2):
        p, ratio = pi.movedim(axis, 0), (b / pi).movedim(axis, 0)
        surplus = rate / (1 - rate) / alpha[axis] * p[0] * p[1] * (ratio[0] - ratio[1])  # of the flow from 0 to 1
        up = (p[1] + surplus) / (p[0] + p[1])
        tables.append(torch.stack([1 - up, up]).movedim(0, axis))
    g = GibbsKernel(tables, alpha)
    k = anew(g, rate, begin=b)
    torch.testing.assert_close(exact.limiting(k), pi, rtol=0, atol=1e-13)
    assert abs(exact.detailed_balance_gap(k)) < 1e-12
    assert exact.detailed_balance_gap(g) > 1e-6 and exact.consistency_gap(g) > 1e-3


@given(SHAPES, SEEDS, STRENGTHS, RATES, WARMUPS)
@properties
def test_the_size_of_the_detailed_balance_gap(shape, seed, strength, rate, warmup):
    """gap = KL(pi K || its transpose) <= (1 - eps) KL(pi G || its transpose) + eps J(pi, b). For consistent
    conditionals with joint p, the first term is eps sum (b - pi) log (pi / p): the gap falls at least like eps."""
    joint = random_joint(shape, seed, strength)
    for g in (gibbs(shape, seed, strength), GibbsKernel(exact.conditionals(joint), weights(shape, seed))):
        k = anew(g, rate, warmup)
        matrix, b = dense(k)
        pi = long_sum(g.matrix(), b, rate)
        flow, within = pi[:, None] * matrix, pi[:, None] * g.matrix()
        gap = float(torch.where(flow > 0, flow * (flow / flow.T).log(), 0).sum())
        inner = float(torch.where(within > 0, within * (within / within.T).log(), 0).sum())
        found = exact.detailed_balance_gap(k)
        assert found == pytest.approx(gap, abs=1e-9)
        assert found <= (1 - rate) * inner + rate * jeffreys(pi, b) + 1e-9
    p = joint.flatten()
    assert (1 - rate) * inner == pytest.approx(rate * float(((b - pi) * (pi / p).log()).sum()), abs=1e-9)


# --- clamped tours ----------------------------------------------------------------------------------------------


def finite_of(tables, alpha=None):
    return exact.enumerate_model(table_model(tables, alpha))


def consistent(shape, seed, strength=1.0):
    joint = random_joint(shape, seed, strength)
    return joint, finite_of(exact.conditionals(joint), weights(shape, seed))


THREE = (2, 3, 2)
SUBSETS = [["a"], ["b"], ["a", "b"], ["b", "c"], ["a", "c"]]
SCANS = ["systematic", "random"]


def clamped_limit(finite, index, rate, warmup, scan, begin):
    """The limit of clamped tours by matrices: `index` has the values left to each group."""
    left = torch.meshgrid(*index, indexing="ij")
    tables = []
    for axis, table in enumerate(finite.kernel.tables):
        part = table[left]
        tables.append(part / part.sum(axis, keepdim=True))
    shape = tables[0].shape
    unit = torch.eye(tables[0].numel(), dtype=torch.float64).view(-1, *shape)
    free = [axis for axis, size in enumerate(shape) if size > 1]
    steps = [(tables[i] * unit.sum(i + 1, keepdim=True)).reshape(len(unit), -1) for i in free]
    if scan == "systematic":
        g = torch.eye(len(unit), dtype=torch.float64)
        for step in steps:
            g = g @ step
    else:
        chance = torch.tensor([finite.kernel.alpha[i] for i in free], dtype=torch.float64)
        g = sum(float(c / chance.sum()) * step for c, step in zip(chance, steps, strict=True))
        g = torch.linalg.matrix_power(g, len(free))
    first = begin[left].flatten()
    return long_sum(g, first / first.sum() @ torch.linalg.matrix_power(g, warmup), rate).view(shape)


@given(SEEDS, STRENGTHS, RATES, WARMUPS, st.sampled_from(SCANS), st.sampled_from(SUBSETS))
@properties
def test_limits_of_clamped_tours(seed, strength, rate, warmup, scan, names):
    """And how far they are from conditionals of the limit, on average over what is seen."""
    finite = finite_of(random_tables(THREE, seed, strength), weights(THREE, seed))
    begin, anew = random_joint(THREE, seed + 1, 2.0), pc.Regeneration(rate, warmup)
    everything = [torch.arange(size) for size in THREE]
    pi = clamped_limit(finite, everything, rate, warmup, scan, begin)
    torch.testing.assert_close(exact.limiting(finite.tours(None, anew, scan, begin)), pi, rtol=0, atol=1e-12)
    total = 0.0
    for values in itertools.product(*[range(len(finite.values[name])) for name in names]):
        seen = dict(zip(names, values, strict=True))
        index = [torch.tensor([seen[n]]) if n in seen else everything[axis] for axis, n in enumerate("abc")]
        given = {name: torch.tensor(value) for name, value in seen.items()}
        expected = clamped_limit(finite, index, rate, warmup, scan, begin)
        found = exact.limiting(finite.tours(given, anew, scan, begin))
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
        implied = pi[torch.meshgrid(*index, indexing="ij")]
        total += float(implied.sum()) * distance(expected, implied / implied.sum())
    assert exact.clamped_gap(finite, names, anew, scan, begin) == pytest.approx(total, abs=1e-11)


@pytest.mark.parametrize("scan", SCANS)
@pytest.mark.parametrize("names", SUBSETS)
def test_clamping_agrees_for_consistent_conditionals_that_begin_at_their_joint(scan, names):
    """Then p_0(. | x_o) is invariant under the clamped sweep, for any eps and w."""
    for seed, rate, warmup in ((0, 0.01, 0), (1, 0.3, 2), (2, 1.0, 0)):
        joint, finite = consistent(THREE, seed, 2.0)
        anew = pc.Regeneration(rate, warmup)
        torch.testing.assert_close(exact.limiting(finite.tours(None, anew, scan, joint)), joint, rtol=0, atol=1e-13)
        assert exact.clamped_gap(finite, names, anew, scan, joint) < 1e-13


@given(SEEDS, STRENGTHS, st.sampled_from([0.01, 0.1, 0.5]), WARMUPS, st.sampled_from(SCANS))
@properties
def test_clamping_agrees_up_to_the_bias_of_eps(seed, strength, rate, warmup, scan):
    """Consistent conditionals with joint p, begun elsewhere. With d the contraction of a sweep,

        TV(pi, p) <= B = TV(p_0, p) eps d^w / (1 - (1 - eps) d),     clamped gap <= E B_o + 2 B,

    where B_o is the same for the clamped sweep, at x_o ~ pi.
    """
    joint, finite = consistent(THREE, seed, strength)
    begin, anew = random_joint(THREE, seed + 1, 2.0), pc.Regeneration(rate, warmup)

    def bound(given):
        k, left = finite.tours(given, anew, scan, begin), joint
        for axis, name in enumerate("abc"):
            left = left.index_select(axis, given[name][None]) if name in given else left
        d = contraction(k.kernel.matrix())
        return distance(k.begin, left / left.sum()) * rate * d**warmup / (1 - (1 - rate) * d)

    pi = exact.limiting(finite.tours(None, anew, scan, begin))
    assert distance(pi, joint) <= bound({}) + 1e-13
    chance = pi.sum([0, 2])
    clamped = sum(float(chance[v]) * bound({"b": torch.tensor(v)}) for v in range(3))
    assert exact.clamped_gap(finite, ["b"], anew, scan, begin) <= clamped + 2 * bound({}) + 1e-12


@given(SEEDS, STRENGTHS, st.sampled_from([0.01, 0.1, 0.5]), WARMUPS)
@properties
def test_the_bias_of_a_random_scan_is_eps_times_its_mixing_time(seed, strength, rate, warmup):
    """A random scan of consistent conditionals is reversible, so its second eigenvalue r bounds it in the norm of
    chi^2: TV(pi, p) <= chi(p_0, p) / 2 * eps r^w / (1 - (1 - eps) r), at most eps / (1 - r) times chi / 2."""
    joint, finite = consistent(THREE, seed, strength)
    begin = random_joint(THREE, seed + 1, 2.0)
    k = finite.tours(None, pc.Regeneration(rate, warmup), "random", begin)
    r, chi = exact.mixing_rate(k.kernel), math.sqrt(float(((begin - joint) ** 2 / joint).sum()))
    bias = distance(exact.limiting(k), joint)
    assert bias <= 0.5 * chi * rate * r**warmup / (1 - (1 - rate) * r) + 1e-13
    assert bias <= 0.5 * chi * rate / (1 - r) + 1e-13


def gaps(finite, begin, cases, names=("b",), scan="systematic"):
    return [exact.clamped_gap(finite, names, pc.Regeneration(*case), scan, begin) for case in cases]


@pytest.mark.parametrize("scan", SCANS)
def test_eps_and_the_warm_up_close_the_gap_only_if_the_conditionals_are_consistent(scan):
    begin = random_joint(THREE, 1, 2.0)
    rates, warmups = [(0.5, 0), (0.05, 0), (0.005, 0), (5e-6, 0)], [(0.5, 0), (0.5, 2), (0.5, 8), (0.5, 1000)]
    for cases in (rates, warmups):
        _, finite = consistent(THREE, 0)
        found = gaps(finite, begin, cases, scan=scan)
        assert found[0] > 0.01 and found[-1] < 1e-5
        inconsistent = finite_of(random_tables(THREE, 0))
        found = gaps(inconsistent, begin, cases, scan=scan)
        # The gap of the paper's kernel, with no tours at all, is what is left.
        limit = exact.limiting(sweep(inconsistent.kernel, scan))
        left = 0.0
        for v in range(3):
            clamped, _ = inconsistent.clamped({"b": torch.tensor(v)})
            part = limit[:, v : v + 1]
            left += float(part.sum()) * distance(exact.limiting(sweep(clamped, scan)), part / part.sum())
        assert left > 0.02
        assert found[-1] == pytest.approx(left, abs=1e-4)


@given(
    SEEDS, STRENGTHS, st.sampled_from([0.05, 0.5]), st.sampled_from([0, 1, 3]), st.sampled_from(SCANS), st.booleans()
)
@properties
def test_with_one_free_group_the_gap_is_what_the_limit_makes_of_its_conditional(seed, strength, rate, w, scan, agree):
    """One redraw suffices where one group is free: pi_o is p_i(x_i | x_-i) if w >= 1, and mixed with p_0(x_i | x_-i) by
    eps if w = 0. So for w >= 1 clamped limits agree with pi, for every x_-i and i, iff pi has the model's conditionals.
    Then pi is their joint, pi = pi G, and b = pi as well: consistency alone is not enough."""
    if agree:
        _, finite = consistent(THREE, seed, strength)
    else:
        finite = finite_of(random_tables(THREE, seed, strength))
    begin, anew = random_joint(THREE, seed + 1), pc.Regeneration(rate, w)
    pi, sizes = exact.limiting(finite.tours(None, anew, scan, begin)), []
    for axis, name in enumerate("abc"):
        table = finite.kernel.tables[axis]
        if w == 0:
            table = (1 - rate) * table + rate * begin / begin.sum(axis, keepdim=True)
        expected = 0.5 * float((table * pi.sum(axis, keepdim=True) - pi).abs().sum())
        others = [n for n in "abc" if n != name]
        assert exact.clamped_gap(finite, others, anew, scan, begin) == pytest.approx(expected, abs=1e-12)
        sizes.append(expected)
    assert max(sizes) > 1e-9
    if w > 0 and scan == "systematic":
        assert sizes[-1] < 1e-12  # what a sweep redraws last always has its conditional


# --- draws are exact --------------------------------------------------------------------------------------------

ROWS = 20_000


def pulled(seed=0):
    """An inconsistent model in which groups like to be equal, so that it takes sweeps to mix: eps and w matter."""
    tables = random_tables(THREE, seed, 0.7)
    a, b, c = torch.meshgrid(*[torch.arange(size) for size in THREE], indexing="ij")
    alike = 1.5 * torch.stack([a == b, b == c, a == c]).sum(0) + (b == 1)
    model = table_model([torch.softmax(t.log() + alike, axis) for axis, t in enumerate(tables)], [0.3, 0.3, 0.4])
    return exact.enumerate_model(model), model


def assert_exact(counts, law, others=()):
    """Draws have this law. A test that could not tell it from the `others` would show nothing."""
    for other in others:
        assert counts.sum() * float(((law - other) ** 2 / law).sum()) > 300, "too few draws to tell these apart"
    assert_fits(counts, law.flatten())


def counts(finite, drawn, size):
    return torch.bincount(state_index(finite, drawn), minlength=math.prod(size)).view(size)


@pytest.mark.parametrize("scan", SCANS)
@pytest.mark.parametrize("warmup", [0, 2])
def test_draws_are_from_the_limit(scan, warmup):
    finite, model = pulled()
    anew, other = pc.Regeneration(0.35, warmup), pc.Regeneration(0.35, 2 - warmup)
    k = finite.tours(None, anew, scan)
    drawn = pc.sample(model, rows=ROWS, regeneration=anew, scan=scan, seed=1)
    elsewhere = [k.begin, exact.limiting(k.kernel), exact.limiting(finite.tours(None, other, scan))]
    assert_exact(counts(finite, drawn, THREE), exact.limiting(k), elsewhere)


@pytest.mark.parametrize("scan", SCANS)
@pytest.mark.parametrize("warmup", [0, 1])
def test_clamped_draws_are_from_the_clamped_limit(scan, warmup):
    """A batch in which every row has one of two clamps: of b, or of a and c."""
    finite, model = pulled()
    anew = pc.Regeneration(0.35, warmup)
    first = torch.arange(2 * ROWS) < ROWS
    values = {name: torch.full((2 * ROWS,), value) for name, value in (("a", 1), ("b", 2), ("c", 0))}
    known = {name: first if name == "b" else ~first for name in "abc"}
    given = {name: pc.Observed(values[name], known[name]) for name in "abc"}
    drawn = pc.sample(model, given, regeneration=anew, scan=scan, seed=2)
    for rows, names in ((first, "b"), (~first, "ac")):
        found = counts(finite, {name: value[rows] for name, value in drawn.items()}, THREE)
        seen = {name: values[name][0] for name in names}
        k = finite.tours(seen, anew, scan)
        part = found.index_select(1, torch.tensor([2])) if names == "b" else found[1:, :, :1]
        assert int(part.sum()) == ROWS
        elsewhere = [k.begin]
        if warmup == 0:
            elsewhere += [exact.limiting(k.kernel)]
        assert_exact(part, exact.limiting(k), elsewhere)


@pytest.mark.parametrize("scan", SCANS)
def test_draws_where_a_group_is_known_in_part(scan):
    """Of an inconsistent model with several coordinates in a group."""
    pair = Pairwise({"u": pc.Binary(3), "c": pc.Categorical(3)}, seed=1, strength=1.0)
    pair.model.conditional("u").network.bias.data.add_(torch.tensor([0.8, -0.8, 0.5]))
    pair.model.conditional("u").network.weights[0].data.mul_(-1)
    finite = exact.enumerate_model(pair.model)
    anew, value, mask = pc.Regeneration(0.4, 1), torch.tensor([1.0, 0.0, 0.0]), torch.tensor([True, False, False])
    given = {"u": pc.Observed(value.expand(ROWS, 3), mask.expand(ROWS, 3))}
    k = finite.tours({"u": pc.Observed(value, mask)}, anew, scan)
    drawn = pc.sample(pair.model, given, regeneration=anew, scan=scan, seed=3)
    found = counts(finite, drawn, (8, 3))
    assert int(found[:4].sum()) == 0  # the first coordinate counts most
    assert_exact(found[4:], exact.limiting(k), [k.begin])


@pytest.mark.parametrize("warmup", [0, 2])
def test_draws_of_tours_that_begin_at_given_values(warmup):
    """p_0 is then the law of these values."""
    finite, model = pulled()
    anew = pc.Regeneration(0.35, warmup)
    generator = torch.Generator().manual_seed(4)
    index = torch.multinomial(random_joint(THREE, 5, 2.0).flatten(), ROWS, replacement=True, generator=generator)
    begin = torch.bincount(index, minlength=12).view(THREE).double() / ROWS
    values = {name: value[index] for name, value in finite.states.items()}
    drawn = pc.sample(
        model,
        rows=1,
        given={"a": pc.Observed(values["a"], torch.zeros(ROWS, dtype=torch.bool))},
        init=values,
        regeneration=anew,
        seed=5,
    )
    k = finite.tours(None, anew, begin=begin)
    assert_exact(
        counts(finite, drawn, THREE),
        exact.limiting(k),
        [begin] + [exact.limiting(finite.tours(None, anew))] * (warmup == 0),
    )


# --- 2^16 states ------------------------------------------------------------------------------------------------

LARGE = (2,) * 16
ONE_BY_ONE = [1 / 16] * 16
SECONDS = 60  # for each test here; about 5 on an idle core


def test_two_to_the_sixteenth_states_take_seconds():
    g = GibbsKernel(random_tables(LARGE, 0), ONE_BY_ONE)
    data, begin = random_joint(LARGE, 1), random_joint(LARGE, 2)
    began = time.perf_counter()
    for rate, warmup in ((0.02, 20), (0.001, 0)):
        k = anew(g, rate, warmup, begin=begin)
        p = exact.limiting(k)
        likelihood, bound = exact.likelihood(data, k), exact.lower_bound(data, k, k, 3)
        gap = exact.detailed_balance_gap(k)
        assert distance(k.push(p), p) < 1e-13
        assert float(likelihood) == pytest.approx(float((data * p.log()).sum()), abs=1e-9)
        # L - L_B by pairs of states on the way: sum_k KL(q_k K || the reverse flow) as differences of free energies.
        laws = exact.trajectory(k, data, 3)
        terms = sum(k.backward_score(law, k) - k.forward_score(law) for law in laws[:3])
        assert float(bound) == pytest.approx(float((laws[3] * p.log()).sum() + terms), abs=1e-9)
        assert float(bound) < float(likelihood)
        assert 0 < gap < math.inf
        systematic = anew(sweep(g), rate, warmup, begin=begin)
        p = exact.limiting(systematic)
        assert distance(systematic.push(p), p) < 1e-13
    assert time.perf_counter() - began < SECONDS


@pytest.mark.parametrize("strength", [0.05, 0.12])
def test_large_and_nearly_reducible(strength):
    """Spins that like to be equal stay up or down for 10^3 and for 10^10 steps. By symmetry their sum is a Markov chain
    of 17 states, whose limit is computed here."""
    spins = torch.tensor([-1.0, 1.0], dtype=torch.float64)
    total = torch.zeros(LARGE, dtype=torch.float64)
    for axis in range(16):
        total = total + spins.view([-1 if a == axis else 1 for a in range(16)])
    joint = torch.softmax((strength * total**2).flatten(), 0).view(LARGE)
    g = GibbsKernel(exact.conditionals(joint), ONE_BY_ONE)
    torch.testing.assert_close(exact.limiting(g), joint, rtol=0, atol=1e-6)  # known in spite of the rounding
    began, rate = time.perf_counter(), 0.001
    k = anew(g, rate, 3, begin=torch.full(LARGE, 2.0**-16, dtype=torch.float64))
    p = exact.limiting(k)
    assert 0 < exact.detailed_balance_gap(k) < 1
    assert time.perf_counter() - began < SECONDS
    up = (total / 2 + 8).round().long()
    found = torch.zeros(17, dtype=torch.float64).index_add_(0, up.flatten(), p.flatten())
    few = torch.zeros(17, 17, dtype=torch.float64)
    for m in range(17):  # m spins are up; one of them, or of the others, is redrawn given the sum of the rest
        for chance, rest in ((m / 16, 2 * (m - 1) - 15), ((16 - m) / 16, 2 * m - 15)):
            rise = 1 / (1 + math.exp(-4 * strength * rest))
            others = m - 1 if rest == 2 * (m - 1) - 15 else m
            if chance > 0:
                few[m, others + 1] += chance * rise
                few[m, others] += chance * (1 - rise)
    begin = torch.tensor([math.comb(16, m) / 2**16 for m in range(17)], dtype=torch.float64)
    law = begin @ torch.linalg.matrix_power(few, 3)
    expected = torch.linalg.solve((torch.eye(17, dtype=torch.float64) - (1 - rate) * few).T, rate * law)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)


def test_large_and_reducible():
    """G has two closed classes, and is refused; K has its limit."""
    g = majority(16)
    began = time.perf_counter()
    with pytest.raises(pc.InputError, match="not unique"):
        exact.limiting(g)
    k = anew(g, 0.05, begin=random_joint(LARGE, 0))
    p = exact.limiting(k)
    assert 0 < exact.detailed_balance_gap(k) < math.inf
    assert math.isfinite(float(exact.likelihood(p, k)))
    assert time.perf_counter() - began < SECONDS
    total, law, weight = torch.zeros_like(p), k.warmed, 0.05
    while weight > 1e-13:
        total, law, weight = total + weight * law, g.push(law), weight * 0.95
    torch.testing.assert_close(p, total, rtol=0, atol=1e-11)


# --- refusals ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [0, -1, 1.01, math.nan, True, "0.1", None])
def test_rates_are_checked(rate):
    with pytest.raises(pc.InputError, match="rate of Regeneration must be a number over 0 and at most 1"):
        pc.Regeneration(rate)


@pytest.mark.parametrize("warmup", [-1, 0.5, True, "long"])
def test_warm_ups_are_checked(warmup):
    with pytest.raises(pc.InputError, match="warmup of Regeneration must be a whole number, at least 0"):
        pc.Regeneration(0.1, warmup)


HALF = torch.full((2, 2), 0.25, dtype=torch.float64)


@pytest.mark.parametrize(
    "begin, regeneration, message",
    [
        (HALF[0], pc.Regeneration(), r"begin must have shape \[2, 2\], found \[2\]"),
        (2 * HALF, pc.Regeneration(), "begin must be probabilities that sum to one, found the least 0.5 and the sum 2"),
        (HALF - torch.tensor([[0.5, -0.5]]), pc.Regeneration(), "found the least -0.25 and the sum 1"),
        (HALF / 0 * 0, pc.Regeneration(), "begin must be probabilities"),
        (HALF, 0.02, r"regeneration must be Regeneration\(rate, warmup\), found 0.02"),
    ],
)
def test_parts_of_the_kernel_are_checked(begin, regeneration, message):
    with pytest.raises(pc.InputError, match=message):
        Regenerative(gibbs((2, 2), 0), begin, regeneration)


@pytest.mark.parametrize(
    "given, options, message",
    [
        ({"d": 0}, {}, r"unknown variable 'd' \(the enumerated groups are a, b, c\)"),
        ({"b": 3}, {}, "'b' has no value that agrees with what is given, 3"),
        ({"b": 0.5}, {}, "'b' has no value that agrees with what is given, 0.5"),
        ({"b": [1, 2]}, {}, r"'b' must be given as one value, \[\], found \[2\]"),
        ({}, {"begin": torch.ones(2, 3)}, r"begin must have shape \[2, 3, 2\], found \[2, 3\]"),
        ({}, {"begin": torch.zeros(THREE)}, "begin gives probability zero to all states that agree with what is given"),
        ({"a": 1}, {"begin": torch.tensor([1.0, 0.0])[:, None, None].expand(THREE)}, "begin gives probability zero"),
        ({}, {"begin": torch.tensor([2.0, -1.0])[:, None, None].expand(THREE)}, "found the least -"),
        ({}, {"scan": "no-repeat"}, "scan must be one of systematic, random, found 'no-repeat'"),
        ({}, {"regeneration": 0.5}, r"regeneration must be Regeneration\(rate, warmup\), found 0.5"),
    ],
)
def test_questions_are_checked(given, options, message):
    finite, _ = pulled()
    with pytest.raises(pc.InputError, match=message):
        finite.tours({name: torch.tensor(value) for name, value in given.items()}, **options)


def test_masks_and_names_are_checked():
    finite, _ = pulled()
    with pytest.raises(pc.InputError, match="mask of 'b' must be boolean"):
        finite.tours({"b": pc.Observed(torch.tensor(1), torch.tensor([True, False]))})
    with pytest.raises(pc.InputError, match="unknown variable 'd'"):
        exact.clamped_gap(finite, ["d"])
    with pytest.raises(pc.InputError, match="unknown variable 'd'"):
        finite.marginal(finite.limiting(), "d")
    zeros = GibbsKernel([torch.eye(3, dtype=torch.float64)] * 2, [0.5, 0.5])
    with pytest.raises(pc.InputError, match="have probability zero given some of the others"):
        zeros.restrict([torch.tensor([0, 1]), torch.tensor([2])])


def test_values_of_begin_may_be_of_any_type_and_scale():
    finite, _ = pulled()
    begin = random_joint(THREE, 3)
    expected = exact.limiting(finite.tours(begin=begin))
    torch.testing.assert_close(exact.limiting(finite.tours(begin=(5 * begin).float())), expected, rtol=1e-6, atol=1e-8)


def test_the_rate_and_the_warm_up_are_the_models_own():
    model = table_model(random_tables(THREE, 0))
    model.regeneration = pc.Regeneration(0.3, 4)
    tours = exact.enumerate_model(model).tours()
    assert (tours.rate, tours.regeneration.warmup) == (0.3, 4)
    torch.testing.assert_close(tours.begin, torch.full(THREE, 1 / 12, dtype=torch.float64))


def test_a_reverse_needs_positive_probabilities():
    begin = torch.zeros(5, dtype=torch.float64)
    begin[0] = 1
    with pytest.raises(pc.InputError, match="states of probability zero have no reverse"):
        exact.reverse(anew(MatrixKernel(torch.eye(5, dtype=torch.float64)), 0.2, begin=begin))
