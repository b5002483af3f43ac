"""Sharded programs across processes, their cost model, and what is read out of HLO."""

from __future__ import annotations

import math
import os
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from roofline.network import Collective, Link, bubble, fit, grid, matmul_collectives, schedule

pytest.importorskip("jax")
ROOT = Path(__file__).parent.parent


def started(code: str, **environ: str) -> subprocess.Popen:
    """A Python of its own, on CPUs, that runs `code`."""
    environment = {
        **os.environ, "PYTHONPATH": str(ROOT / "code"), "JAX_PLATFORMS": "cpu", **environ
    }  # fmt: skip
    return subprocess.Popen(
        [sys.executable, "-c", code], env=environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def finished(process: subprocess.Popen) -> str:
    said, _ = process.communicate(timeout=150)
    assert process.returncode == 0, said
    return said


MEETING = """
import jax
import jax.numpy as jnp
import numpy as np
from functools import partial
from jax.sharding import PartitionSpec as P

port, rank, processes = {arguments}
jax.distributed.initialize(f"localhost:{{port}}", processes, rank)
assert jax.process_count() == processes and len(jax.local_devices()) == 2

from roofline.network import bubble, schedule
from roofline.sharding import all_gather_matmul, collectives, pipeline

n = len(jax.devices())
mesh = jax.make_mesh((n,), ("x",))
rng = np.random.default_rng(0)  # the same numbers in each process


def mine(result, whole, tolerance=1e-5):
    for shard in result.addressable_shards:
        part = whole[shard.index]
        assert np.linalg.norm(shard.data - part) <= tolerance * np.linalg.norm(part)


x, w = rng.standard_normal((6 * n, 20)), rng.standard_normal((20, 5 * n))
for overlap in (False, True):
    run = jax.jit(partial(all_gather_matmul, mesh=mesh, axis="x", overlap=overlap))
    mine(run(np.float32(x), np.float32(w)), x @ w)
    found = collectives(run.lower(np.float32(x), np.float32(w)).compile())
    assert sum(c.sent for c in found) == (n - 1) * 6 * 20 * 4

weights, batches = rng.standard_normal((n, 16, 16)) / 4, rng.standard_normal((5, 3, 16))
run = jax.jit(partial(pipeline, lambda w, x: jnp.tanh(x @ w), mesh=mesh, axis="x"))
out, seen = run(np.float32(weights), np.float32(batches))
expected = batches
for w in weights:
    expected = np.tanh(expected @ w)
mine(out, expected)
for shard in seen.addressable_shards:
    assert shard.data.tolist() == [schedule(n, 5)[shard.index[0].start or 0]]
print("process", rank, "of", processes, "agrees on", n, "devices")
"""


def test_several_processes_make_one_mesh():
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    flags = "--xla_force_host_platform_device_count=2"
    ranks = [
        started(MEETING.format(arguments=(port, rank, 2)), XLA_FLAGS=flags) for rank in range(2)
    ]
    try:
        for rank, process in enumerate(ranks):
            assert f"process {rank} of 2 agrees on 4 devices" in finished(process)
    finally:
        for process in ranks:
            process.kill()


def test_importing_the_package_and_its_model_starts_no_jax():
    code = "import sys, roofline, roofline.network, roofline.support.numbers; print('jax' in sys.modules)"
    assert finished(started(code)).strip() == "False"


@pytest.mark.parametrize(
    ("groups", "size"),
    [
        ("replica_groups={{0,1,2,3},{4,5,6,7}}", 4),
        ("replica_groups=[4,2]<=[8]", 2),
        ("replica_groups=[4,2]<=[2,4]T(1,0)", 2),
        ("replica_groups=mesh['a'=2,'b'=4] {'b'}", 4),
        ("replica_groups=mesh['a'=2,'b'=4] {'a','b'}", 8),
        ("replica_groups=mesh['a'=8] {'a':(2)4}", 4),
        ("source_target_pairs={{0,1},{1,2},{2,0}}", 3),
        ("source_target_pairs={{0,1},{1,2}}", 3),
        ("source_target_pairs={{0,2},{2,0},{1,3},{3,1}}", 2),
        ("source_target_pairs={}", 0),
    ],
)
def test_groups_are_read_in_every_way_they_are_written(groups, size):
    from roofline.sharding import _group_size

    assert _group_size(f"%x), channel_id=1, {groups}, use_global_device_ids=true") == size


def test_collectives_of_a_gpus_program_are_read_whole():
    """Split into start and done, several operands in one, and inside a loop."""
    from roofline.sharding import collectives

    text = """\
%body (p: (s32[], bf16[4,16])) -> (s32[], bf16[4,16]) {
  %a = s32[] parameter(0)
  %b = bf16[4,16]{1,0:T(8,128)} parameter(1)
  %s = ((s32[], bf16[4,16]{1,0}), (s32[], bf16[4,16]{1,0})) collective-permute-start(%a, %b), source_target_pairs={{0,1}}
  ROOT %d = (s32[], bf16[4,16]{1,0}) collective-permute-done(%s)
}

ENTRY %main (p0: f32[8,4]) -> f32[16,4] {
  %p0 = f32[8,4]{1,0} parameter(0)
  %w = (s32[], bf16[4,16]) while(%p0), condition=%c, body=%body, backend_config={"known_trip_count":{"n":"6"}}
  %g = (f32[8,4]{1,0}, f32[16,4]{1,0}) all-gather-start(%p0), replica_groups={{0,1}}, dimensions={0}
  %alone = f32[8,4]{1,0} all-reduce(%p0), replica_groups={{0},{1}}, to_apply=%add
  ROOT %h = f32[16,4]{1,0} all-gather-done(%g)
}
"""
    assert collectives(text) == [
        Collective("ppermute", 4 + 4 * 16 * 2, 2, times=6),
        Collective("all-gather", 16 * 4 * 4, 2),
    ]
    with pytest.raises(ValueError, match="unknown length"):
        collectives(text.replace("known_trip_count", "what"))


def test_a_ring_sends_what_its_turns_add_up_to():
    for n in range(1, 9):
        pieces = n * 12
        gathered = Collective("all-gather", pieces, n)
        assert gathered.sent == pytest.approx((n - 1) * 12) and gathered.messages == n - 1
        summed = Collective("all-reduce", pieces, n)
        assert summed.sent == pytest.approx(2 * gathered.sent) and summed.messages == 2 * n - 2
    assert Collective("ppermute", 5, 8, times=3).sent == 15
    with pytest.raises(ValueError, match="kind must be"):
        Collective("broadcast", 1, 2)


def test_a_layout_outside_the_rules_is_refused():
    with pytest.raises(ValueError, match="c must follow"):
        matmul_collectives(8, 8, 8, ("x", None), (None, None), (None, "x"), mesh={"x": 2})


def test_a_schedule_obeys_its_dependencies_and_its_bubble():
    for stages in range(1, 6):
        for batches in range(1, 9):
            plan = schedule(stages, batches)
            for row in plan:
                assert [b for b in row if b >= 0] == list(range(batches))
            for before, after in zip(plan, plan[1:]):
                assert all(after.index(b) == before.index(b) + 1 for b in range(batches))
            idle = sum(row.count(-1) for row in plan) / sum(map(len, plan))
            assert math.isclose(idle, bubble(stages, batches))
    with pytest.raises(ValueError, match="at least 1"):
        bubble(0, 4)


def test_a_fit_finds_the_link_it_came_from():
    link = Link("a", 3e11, 2e-5)
    exact = [(q, 2e-5 + q / 3e11) for q in (1e3, 1e6, 1e9)]
    assert fit(exact) == pytest.approx((link.alpha, link.bandwidth))
    with pytest.raises(ValueError, match="two sizes"):
        fit(exact[:1] * 3)


def test_a_grid_is_as_square_as_its_number_allows():
    assert [grid(n) for n in (1, 2, 3, 4, 6, 8, 12)] == [
        (1, 1), (1, 2), (1, 3), (2, 2), (2, 3), (2, 4), (3, 4)
    ]  # fmt: skip


REFUSALS = """
import jax, jax.numpy as jnp
from roofline.pallas_softmax import softmax
from roofline.sharding import all_gather_matmul, pipeline

mesh = jax.make_mesh((2,), ("x",))
x = jnp.ones


def refused(says, f, *arguments, **named):
    try:
        f(*arguments, **named)
    except ValueError as error:
        assert says in str(error), error
    else:
        raise AssertionError("not refused: " + says)


both = dict(mesh=mesh, axis="x")
refused("rows of x", all_gather_matmul, x((3, 4)), x((4, 2)), **both)
refused("columns of w", all_gather_matmul, x((2, 4)), x((4, 3)), **both)
refused("that fit", all_gather_matmul, x((2, 4)), x((3, 2)), **both)
refused("2 stages", pipeline, lambda w, x: x, x((3, 4)), x((5, 4)), **both)
refused("matrix", softmax, x((2, 3, 4)))
refused("floats", softmax, jnp.ones((2, 3), int))
print("all refused")
"""


def test_what_cannot_be_spread_is_refused_by_name():
    flags = "--xla_force_host_platform_device_count=2"
    assert "all refused" in finished(started(REFUSALS, XLA_FLAGS=flags))


def test_a_record_says_what_ran_where_there_are_gpus(monkeypatch, tmp_path):
    """As JAX, the driver and nvidia-smi would answer on two GPUs; none of them is here."""
    import jax

    from roofline.support import jax_environment as here
    from roofline.support.record import Device

    card = SimpleNamespace(
        platform="gpu", device_kind="NVIDIA H200", compute_capability="9.0", core_count=132
    )
    monkeypatch.setattr(jax, "devices", lambda: [card] * 2)
    assert here.device() == Device("NVIDIA H200", "9.0", 132)
    monkeypatch.setattr(jax, "devices", lambda: [SimpleNamespace(platform="cpu")])
    assert here.device() == Device("CPU")

    monkeypatch.setattr(here, "DRIVER", tmp_path / "version")
    assert here.driver() is None
    said = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build"
    here.DRIVER.write_text(f"{said}\nGCC version: gcc 13.3.0")
    assert here.driver() == "580.159.04"
    here.DRIVER.write_text("no numbers")
    assert here.driver() is None

    topology = "        GPU0    GPU1    CPU Affinity\nGPU0     X      NV18    0-15\nGPU1    NV18     X      0-15\n"
    monkeypatch.setattr(here.subprocess, "check_output", lambda command, text: topology)
    monkeypatch.setenv("NCCL_NVLS_ENABLE", "0")
    monkeypatch.setenv("XLA_FLAGS", "")
    found = here.versions()
    assert found["jax"] == jax.__version__ and found["link"] == "NV18"
    assert found["NCCL_NVLS_ENABLE"] == "0" and "XLA_FLAGS" not in found
    monkeypatch.setattr(here.subprocess, "check_output", lambda command, text: "nothing")
    assert "link" not in here.versions()
