# Tangled from chapters/03_triton_tiled_matmul.md: edit it there, then run `make tangle`.
# Content hash: dab699620af6af35

"""The order in which a matrix product's tiles are computed, and what it costs."""

from collections import OrderedDict
from itertools import islice


def grouped_order(pid, tiles_m, tiles_n, group):
    """Tile (row, column) of program `pid`: down `group` rows, then a column on."""
    per_group = group * tiles_n
    first_m = (pid // per_group) * group
    height = min(tiles_m - first_m, group)
    pid_m = first_m + (pid % per_group) % height
    pid_n = (pid % per_group) // height
    return pid_m, pid_n


def waves(tiles_m, tiles_n, group, programs):
    """The tiles in launch order, cut into lists of `programs` that run together."""
    tiles = range(tiles_m * tiles_n)
    order = (grouped_order(pid, tiles_m, tiles_n, group) for pid in tiles)
    while wave := list(islice(order, programs)):
        yield wave


def dram_reads(
    m, n, k, *, tile, group, programs, cache, itemsize=2, slices=32
):
    """Bytes of A and B that a matrix product reads from DRAM, by simulation.

    The `programs` of a wave walk along K together, in `slices` steps, and share an
    L2 of `cache` bytes that forgets what was used longest ago. tile: rows, columns.
    """
    tiles_m, tiles_n = -(-m // tile[0]), -(-n // tile[1])
    depth = k * itemsize // slices
    size = {"a": tile[0] * depth, "b": tile[1] * depth}
    held, room, read = OrderedDict(), cache, 0
    for wave in waves(tiles_m, tiles_n, group, programs):
        panels = sorted({("a", i) for i, _ in wave} | {("b", j) for _, j in wave})
        for step in range(slices):
            for matrix, panel in panels:
                key = matrix, panel, step
                if key in held:
                    held.move_to_end(key)
                    continue
                held[key] = size[matrix]
                read += size[matrix]
                room -= size[matrix]
                while room < 0:
                    room += held.popitem(last=False)[1]
    return read
