# Tangled from chapters/04_triton_flashattention.md: edit it there, then run `make tangle`.
# Content hash: 715bfeb1dc8ed357

"""Which blocks of keys a tile of queries sees, as a plain function (chapter 4)."""


def key_blocks(
    m0: int, sq: int, sk: int, *, causal: bool, block_m: int, block_n: int
) -> tuple[int, int]:
    """How many blocks of keys all rows from m0 see whole, and how many any row sees."""
    whole, end = sk // block_n, -(-sk // block_n)
    if causal:
        first = m0 + (sk - sq)
        whole = min(whole, max(first + 1, 0) // block_n)
        end = min(end, -(-max(first + block_m, 0) // block_n))
    return whole, end
