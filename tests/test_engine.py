"""Recorded programs against eager ones and against exact answers (on a GPU), and what an engine refuses."""

import contextlib
import copy
import gc
import os
import time
import weakref
from dataclasses import replace
from functools import partial

import pytest
import scipy.stats
import torch
from helpers import (
    THRESHOLD,
    assert_fits,
    learner_of,
    random_joint,
    random_tables,
    sample,
    state_index,
    still,
    table_model,
)

import paracond as pc
from paracond import exact
from paracond.baselines.directed import VAE, Symmetric
from paracond.experiments.images import fashion, mnist
from paracond.experiments.images.model import make_learner, small
from paracond.runtime import engine as engine_module
from paracond.runtime.engine import RoundedCopy

SHAPE = (2, 3, 2)
gpu = pytest.mark.gpu


def images(device, **options):
    torch.manual_seed(0)
    variables = {"x": pc.Real((1, 12, 12), scale="learned"), "c": pc.Categorical(3), "z": pc.Binary(8)}
    networks = {n: pc.networks.image_network(variables, n, width=8, kind="residual", **options) for n in variables}
    return pc.JointModel({n: pc.Conditional(variables[n], net) for n, net in networks.items()}).to(device)


def pictures(rows, seed=0):
    generator = torch.Generator().manual_seed(seed)
    c = torch.randint(3, (rows,), generator=generator)
    x = torch.rand(rows, 1, 12, 12, generator=generator) * 0.1 + c.view(-1, 1, 1, 1) / 3
    return pc.Data({"x": x, "c": c})


@gpu
def test_a_recorded_chain_has_the_exact_limit():
    model = table_model(random_tables(SHAPE, 0, strength=1.0)).to("cuda")
    finite = exact.enumerate_model(table_model(random_tables(SHAPE, 0, strength=1.0)))
    rows = 40_000
    chain = pc.Chain(model, generator=model.generator(0), scan="random", per_row=False, engine="graphs")
    state = chain.run(pc.initializers.initial_state(model, rows, model.generator(1)), 60)
    scanned = exact_after(finite, chain, rows)
    counts = torch.bincount(state_index(finite, {n: v.cpu() for n, v in state.items()}), minlength=12)
    assert_fits(counts, scanned)


def exact_after(finite, chain, rows):
    """The law after 60 steps of the scan that a chain with this seed makes, from a uniform start."""
    model = chain.model
    again = pc.Chain(model, generator=model.generator(0), scan="random", engine="eager")
    law = torch.full(SHAPE, 1 / 12, dtype=torch.float64)
    for _ in range(60):
        axis = model.index(again.scan.next())
        table = finite.kernel.tables[axis]
        law = law.sum(axis, keepdim=True) * table
    return law


@gpu
def test_recorded_and_eager_updates_follow_the_same_law():
    """The scan is made on the host and is the same by seed; so, with parameters that do not move, are all laws."""
    data = pc.datasets.hide(pc.Data(sample(random_joint(SHAPE, 1), 20_000, 2)), {"b": 0.5})
    tables = random_tables(SHAPE, 0, strength=1.0)
    counts = []
    for engine in ("eager", "graphs"):
        learner = learner_of(
            table_model(tables).to("cuda"), data, chain_length=3, batch_size=20_000, optimiser=still, engine=engine
        )
        learner.fit(40)
        finite = exact.enumerate_model(table_model(tables))
        batch = {n: v.cpu() for n, v in learner.batch.state.items()}
        counts.append(torch.bincount(state_index(finite, batch), minlength=12))
    pooled = sum(counts).double()
    # Half of the sum is expected in either: a two-sample chi-square test.
    statistic = sum(((c - pooled / 2) ** 2 / (pooled / 2)).sum() for c in counts)
    assert float(scipy.stats.chi2.sf(float(statistic), 11)) > THRESHOLD


@gpu
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning:torch._inductor")  # its own
@pytest.mark.parametrize("compile", [False, True])
def test_recorded_learning_reaches_the_same_loss(compile):
    """bfloat16 and recording change digits, not what is learned."""
    found = {}
    for mode in ("eager", "graphs"):
        engine = pc.Engine("cuda", mode, compile=compile and mode == "graphs")
        learner = learner_of(images("cuda"), pictures(512), batch_size=128, engine=engine)
        losses = {n: [] for n in "xcz"}
        for info in learner.run(900):
            losses[info.variable].append(info.loss)
        found[mode] = {n: float(torch.stack(v[-100:]).mean()) for n, v in losses.items()}
    assert found["eager"]["x"] == pytest.approx(found["graphs"]["x"], abs=0.05 * 144)
    assert found["graphs"]["c"] < 0.1


@gpu
@pytest.mark.parametrize("experiment", [mnist.EXPERIMENT, fashion.EXPERIMENT], ids=["mnist", "fashion"])
@pytest.mark.parametrize("hidden", [{}, {"c": 0.5}, {"x": 0.5}])
def test_the_designs_of_the_presets_can_be_recorded(experiment, hidden):
    """Context, shifts, missing labels and pixels: nothing in their programs waits for the host."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(300, 1, 28, 28, generator=generator)
    state = {"x": (x > 0.5).float() if experiment.name == "mnist" else x, "c": torch.arange(300) % 10}
    data = pc.datasets.hide(pc.Data(state), hidden, coordinates="x" in hidden)
    for design in experiment.presets.values():
        design = replace(small(design), shifts=0 if "x" in hidden else 2)
        learner = make_learner(design, data, pc.Engine("cuda", "graphs"), 0)
        model = learner.fit(60)
        assert all(bool(p.isfinite().all()) for p in model.parameters())


def one_of_kind(kind, device, **options):
    state = pictures(60).state
    if kind in ("VAE", "Symmetric"):
        variables = {"x": pc.Real((1, 12, 12), scale="learned"), "z": pc.Binary(8)}
        networks = {n: pc.networks.image_network(variables, n, width=8, kind="residual") for n in variables}
        model = pc.JointModel({n: pc.Conditional(variables[n], net) for n, net in networks.items()}).to(device)
        return {"VAE": VAE, "Symmetric": Symmetric}[kind](model, pc.Data({"x": state["x"]}), batch_size=20, **options)
    options |= {"parallel": {"parallel": True}, "warm": {"warm": ["z"]}}.get(kind, {})
    return learner_of(images(device), pc.Data(state), batch_size=20, **options)


KINDS = ["Learner", "parallel", "warm", "VAE", "Symmetric"]


@pytest.fixture
def no_collection():
    """Python does not look for cycles meanwhile. (What torch imports when it is first used keeps some frames alive.)"""
    one_of_kind("Learner", "cpu").fit(2)
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("kind", KINDS)
def test_a_learner_is_gone_with_its_last_user(kind, no_collection):
    """So that the memory of its graphs is."""
    learner = one_of_kind(kind, "cpu")
    learner.fit(9)
    seen = weakref.ref(learner), weakref.ref(learner.completion)
    del learner
    assert [each() for each in seen] == [None, None]


def test_a_chain_is_gone_with_its_last_user_and_draws_in_place_as_it_does_step_by_step(no_collection):
    """What is recorded on CUDA, run as it is."""
    model, found = table_model(random_tables(SHAPE, 0)), []
    for recorded in (False, True):
        chain = pc.Chain(model, generator=model.generator(0), scan="no-repeat")
        state = pc.initializers.initial_state(model, 50, model.generator(1))
        run = chain._run_recorded if recorded else lambda scan, *rest, chain=chain: chain.run(*rest)
        found.append(run(chain.scan, state, 40, (), False))
    assert all(torch.equal(found[0][name], found[1][name]) for name in "abc")
    seen = weakref.ref(chain), weakref.ref(chain._recorder)
    del chain, run
    assert [each() for each in seen] == [None, None]


def test_a_fused_learner_is_gone_with_its_last_user_too(no_collection, monkeypatch):
    """With dynamo, though without the compiler behind it, which would take a minute."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    losses = []
    for compile in (False, True):
        learner = one_of_kind("Learner", "cpu", engine=pc.Engine("cpu", compile=compile))
        losses.append([float(info.loss) for info in learner.run(6)])
    assert losses[0] == losses[1]
    seen = weakref.ref(learner)
    del learner
    assert seen() is None


@pytest.mark.parametrize("kind", KINDS)
def test_a_copied_learner_learns_by_itself(kind):
    """As the original would have, which stays as it is."""
    learner = one_of_kind(kind, "cpu")
    learner.fit(3)
    copied, before = copy.deepcopy(learner), [p.detach().clone() for p in learner.model.parameters()]
    copied.fit(5)
    assert all(torch.equal(a, b) for a, b in zip(before, learner.model.parameters(), strict=True))
    assert (learner.step_count, copied.step_count) == (3, 8)
    learner.fit(5)
    pairs = zip(copied.model.parameters(), learner.model.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_a_program_without_its_object_is_refused(no_collection):
    update = one_of_kind("VAE", "cpu").update
    with pytest.raises(ReferenceError, match=r"Directed\._update is called after its object is gone: keep the object"):
        update()


def test_graphs_share_memory_as_long_as_one_of_them_is_there(monkeypatch):
    """And never that of graphs that are gone, which torch refuses."""
    handles = iter(range(9))
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: next(handles))
    engine = pc.Engine("cpu")
    first, second = engine.pool(), engine.pool()
    assert first is second and first.handle == 0
    del first
    assert engine.pool().handle == 0
    del second
    assert engine.pool().handle == 1
    assert engine.twin().pool().handle == 2


def test_engines_have_streams_of_their_own_and_leave_them_to_the_next(monkeypatch, no_collection):
    """Of which libraries keep a workspace each, for good."""
    streams = iter(range(9))
    monkeypatch.setattr(engine_module, "_idle", {})
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: next(streams))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    first = pc.Engine("cuda")
    second, third = first.twin(), copy.deepcopy(first)
    assert [engine._stream for engine in (first, second, third)] == [0, 1, 2]
    del second
    assert pc.Engine("cuda")._stream == 1  # and it is gone at once
    kept = [pc.Engine("cuda"), pc.Engine("cuda"), pc.Engine("cpu")]
    assert [engine._stream for engine in kept] == [1, 3, None]
    del first, kept
    assert pc.Engine("cuda:0")._stream == 4  # of another device
    assert pc.Engine("cuda:1")._stream < 4


class PretendStream:
    def wait_stream(self, other):
        pass


class PretendGraph:
    """Replays by calling what was recorded."""

    def register_generator_state(self, generator):
        pass

    def replay(self):
        self.work()


@pytest.fixture
def pretend(monkeypatch):
    """A CPU that records: all of `engine` but torch's own part. Lists the handles of memory that was recorded into."""
    handles, used = iter(range(99)), []

    @contextlib.contextmanager
    def record(graph, pool, stream):
        used.append(pool)
        yield

    def recorded(program, original=engine_module._Recorded._record):
        work, program.work = program.work, lambda: None  # what is recorded does not run
        original(program)
        program.work, program.graph.work = work, lambda: work.function(work._owner(), *work.arguments)

    for name, stand_in in {
        "CUDAGraph": PretendGraph,
        "graph": record,
        "graph_pool_handle": lambda: next(handles),
        "current_stream": lambda *_: PretendStream(),
        "stream": lambda _: contextlib.nullcontext(),
        "synchronize": lambda *_: None,
    }.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    monkeypatch.setattr(engine_module._Recorded, "_record", recorded)

    def engine():
        made = pc.Engine("cpu")
        made.captures, made._stream = True, PretendStream()
        return made

    return engine, used


def test_recorded_programs_run_are_refused_and_leave_their_memory(pretend, no_collection):
    """As they do on CUDA, where only torch's part is another: a chain draws as it does step by step; its programs share
    memory, which the next chain does not get; and without their object they are refused."""
    model, (make, used) = table_model(random_tables(SHAPE, 0)), pretend
    engine, found = make(), []
    for each in (engine, "eager"):
        chain = pc.Chain(model, generator=model.generator(0), scan="no-repeat", engine=each)
        found.append(chain.run(pc.initializers.initial_state(model, 50, model.generator(1)), 90))
        if each is engine:
            programs, seen = dict(chain._recorder.programs), weakref.ref(chain)
    assert all(torch.equal(found[0][name], found[1][name]) for name in "abc")
    assert used == [0, 0, 0] and all(program.pool.handle == 0 for program in programs.values())
    assert seen() is None
    with pytest.raises(ReferenceError, match=r"_Recorder\._redraw is called after its object is gone"):
        programs["a"]()
    del programs
    pc.Chain(model, generator=model.generator(0), engine=engine).run(
        pc.initializers.initial_state(model, 5, model.generator(1)), 90
    )
    assert used[3:] == [1, 1, 1]


@gpu
def test_an_engine_is_used_again_after_a_learner(no_collection):
    """What a learner leaves of its memory (gradients, say) is not recorded over."""
    engine, model = pc.Engine("cuda"), images("cuda")
    for _ in range(2):
        averaged = learner_of(model, pictures(60), batch_size=20, engine=engine).fit(30)
        drawn = pc.sample(averaged, rows=50, sweeps=10, engine=engine)
        assert all(bool(value.isfinite().all()) for value in drawn.values())


@gpu
@pytest.mark.parametrize("kind", KINDS)
def test_memory_of_graphs_is_given_back(kind, no_collection):
    """What one training and its chains took is there again for the next, whatever Python collects."""

    def used():
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        return torch.cuda.memory_allocated(), torch.cuda.memory_reserved()

    def work():
        model = one_of_kind(kind, "cuda").fit(30)
        pc.sample(model, rows=20_000, sweeps=10)

    work()  # libraries have their workspaces by now
    before = used()
    for _ in range(3):
        work()
    allocated, reserved = used()
    # A chain's graphs have at least one activation of 8 x 12 x 12 bfloat16 numbers in all rows: 46 MB.
    assert allocated <= before[0] + 2**20 and reserved <= before[1] + 2**25


def test_a_working_model_rounds_weights_and_returns_their_gradients():
    model = images("cpu")
    state = pc.initializers.initial_state(model, 6, model.generator(0))
    working = RoundedCopy(model, rounded=True)
    part, copied = model.conditional("x"), working.model.conditional("x")
    pairs = list(zip(part.parameters(), copied.parameters(), strict=True))
    kinds = {id(old): (old is new, new.dtype) for old, new in pairs}
    assert set(kinds.values()) == {(True, torch.float32), (False, torch.bfloat16)}  # the norms' gains are shared
    with torch.no_grad():
        for old in part.parameters():
            old.add_(0.25)
    working.refresh(part)
    assert all(torch.equal(new, old.to(new.dtype)) for old, new in pairs)

    with torch.autocast("cpu", torch.bfloat16):
        (-model("x", state).log_prob(state["x"]).mean()).backward()
    expected = [old.grad.clone() for old in part.parameters()]
    model.zero_grad()
    with torch.autocast("cpu", torch.bfloat16):
        (-working.model("x", state).log_prob(state["x"]).mean()).backward()
    working.return_gradients(part)
    assert all(new.grad is None for old, new in pairs if old is not new)
    for old, gradient in zip(part.parameters(), expected, strict=True):
        torch.testing.assert_close(old.grad, gradient, rtol=2e-2, atol=1e-2 * float(gradient.abs().max()))


@gpu
def test_what_is_not_finite_in_a_recorded_program_is_found_and_nothing_changes_after_it():
    model = table_model(random_tables(SHAPE, 0)).to("cuda")
    learner = learner_of(model, pc.Data(sample(random_joint(SHAPE, 1), 100, 2)), learning_rate=0.01, batch_size=50)
    learner.fit(30)
    with torch.no_grad():
        model.conditional("b").network.logits.fill_(float("nan"))
    kept = model.conditional("a").network.logits.detach().clone()
    with pytest.raises(pc.NonFiniteError, match="'b' is not finite at step 3"):
        learner.fit(1000)
    other = model.conditional("a").network.logits.detach()
    assert bool(other.isfinite().all()) and float((other - kept).abs().max()) < 0.05


def test_a_rounded_chain_follows_the_same_law_up_to_rounding():
    """Means along chains with a class clamped: bfloat16 has three digits."""
    model = images("cpu")
    learner = learner_of(model, pictures(256), batch_size=64, learning_rate=2e-3)
    model = learner.fit(150)
    c = torch.arange(300) % 3
    means = [pc.sample(model, {"c": c}, sweeps=10, engine=mode)["x"].mean((1, 2, 3)) for mode in ("eager", "rounded")]
    spread = torch.stack([means[0][c == k].std() for k in range(3)])
    for k in range(3):
        gap = float(means[0][c == k].mean() - means[1][c == k].mean())
        assert abs(gap) < 0.01 + 5 * float(spread[k]) / 10
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.5)
    chain = pc.Chain(model, generator=model.generator(0), clamp={"c": torch.tensor(True)}, engine="rounded")
    state = pc.initializers.initial_state(model, 4, model.generator(0))
    chain.run(state, 1)
    pairs = zip(model.parameters(), chain.rounded.model.parameters(), strict=True)
    assert all(torch.equal(new, old.to(new.dtype)) for old, new in pairs)


def test_the_fastest_engine_is_found_by_trying():
    threads = torch.get_num_threads()
    try:
        for slow in ("eager", "rounded"):
            found = pc.Engine.fastest(
                "cpu", lambda e, slow=slow: time.sleep(0.02 if e.rounds == (slow == "rounded") else 0)
            )
            assert found.rounds == (slow == "eager")
    finally:
        torch.set_num_threads(threads)


def test_graphs_need_cuda():
    model = table_model(random_tables(SHAPE, 0))
    with pytest.raises(pc.InputError, match='engine "graphs" needs a CUDA device; the model is on cpu'):
        learner_of(model, pc.Data(sample(random_joint(SHAPE, 1), 10, 2)), engine="graphs")
    with pytest.raises(pc.InputError, match="engine must be one of auto, eager, rounded, graphs, found 'fast'"):
        pc.Chain(model, generator=model.generator(0), engine="fast")


@gpu
def test_graphs_need_a_fused_optimiser():
    model = table_model(random_tables(SHAPE, 0)).to("cuda")
    with pytest.raises(pc.InputError, match="the optimiser of 'a' must be made with fused=True"):
        learner_of(
            model,
            pc.Data(sample(random_joint(SHAPE, 1), 10, 2)),
            optimiser=lambda name, ps: torch.optim.SGD(ps, lr=0.1),
        )


def test_the_number_of_threads_is_chosen_by_trying():
    """A piece of work that takes longer with every thread settles at one, and the reverse at all."""
    former = torch.get_num_threads()
    try:
        pc.Engine("cpu").choose_threads(lambda: time.sleep(0.01 * torch.get_num_threads()))
        assert torch.get_num_threads() == 1
        pc.Engine("cpu").choose_threads(lambda: time.sleep(0.02 / torch.get_num_threads()))
        assert torch.get_num_threads() == os.cpu_count()
    finally:
        torch.set_num_threads(former)
