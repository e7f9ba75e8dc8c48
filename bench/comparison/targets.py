# Targets: best peer / ouro and share of the limit, by collective, ranks, size and class of buffers.
# Used by judge.py. Figures hold for method A, float32.
ENOUGH_OF_LIMIT = 0.95  # a row that reaches this need not reach the ratio

SIZES = (8, 1 << 10, 64 << 10, 1 << 20, 16 << 20, 128 << 20)

# (collective, in place or None for both, ranks): private and registered, by size.
RATIOS = {
    ("all_reduce", False, 2): ((2.5, 2.5, 1.6, 1.4, 1.7, 1.6), (2.5, 2.5, 1.7, 2.4, 2.3, 2.2)),
    ("all_reduce", True, 2): ((2.0, 2.0, 1.4, 1.1, 1.2, 1.4), (2.0, 2.0, 1.6, 2.5, 2.5, 2.2)),
    ("all_reduce", None, 4): ((1.8, 3.0, 2.5, 1.3, 1.5, 1.8), (1.8, 3.0, 3.0, 2.4, 3.2, 3.0)),
    ("broadcast", None, 2): ((1.0, 1.5, 1.15, 1.15, 1.2, 1.15), (1.0, 1.5, 1.3, 1.6, 1.3, 1.35)),
    ("broadcast", None, 4): ((1.0, 4.0, 1.8, 1.2, 1.2, 1.3), (1.0, 4.0, 1.8, 1.5, 1.8, 1.8)),
    ("all_gather", None, 2): ((2.3, 2.3, 1.2, 1.05, 1.1, 1.2), (2.3, 2.3, 1.35, 1.3, 1.6, 1.4)),
    ("all_gather", None, 4): ((1.6, 2.5, 1.5, 1.05, 1.1, 1.3), (1.6, 2.5, 1.8, 1.4, 1.5, 1.6)),
    ("reduce_scatter", None, 2): ((2.0, 2.0, 1.5, 2.0, 1.6, 1.9), (2.0, 2.0, 2.5, 3.5, 2.3, 2.6)),
    ("reduce_scatter", None, 4): ((1.5, 1.5, 1.3, 1.4, 1.6, 2.0), (1.5, 1.5, 2.0, 3.5, 3.5, 3.0)),
}
# Collectives without figures of their own: above 64 KiB at least this.
ALL_TO_ALL = {"private": 1.2, "registered": 1.5}

# Two ranks, share of the limit by size (64 KiB, 1, 16, 128 MiB): private and registered.
SHARES = {
    "all_reduce": ((0.70, 0.55, 0.90, 0.75), (0.70, 0.85, 0.95, 0.95)),
    "broadcast": ((0.70, 0.60, 0.75, 0.70), (0.70, 0.80, 0.90, 0.90)),
    "all_gather": ((0.70, 0.60, 0.75, 0.70), (0.70, 0.80, 0.90, 0.90)),
    "reduce_scatter": ((0.70, 0.60, 0.75, 0.70), (0.70, 0.80, 0.90, 0.90)),
}


def ratio(key, buffer):
    """The target ratio, or None."""
    if key.method != "A" or key.dtype != "float32" or buffer == "private-4k":
        return None
    if key.collective == "all_to_all":
        return ALL_TO_ALL[buffer] if key.bytes > 64 << 10 else None
    if key.bytes not in SIZES:
        return None
    row = RATIOS.get((key.collective, key.in_place, key.ranks)) or RATIOS.get((key.collective, None, key.ranks))
    return row[buffer == "registered"][SIZES.index(key.bytes)] if row else None


def share(key, buffer):
    """The target share of the limit, or None."""
    if key.method != "A" or key.dtype != "float32" or key.ranks != 2 or buffer == "private-4k":
        return None
    if key.collective not in SHARES or key.bytes not in SIZES[2:]:
        return None
    return SHARES[key.collective][buffer == "registered"][SIZES[2:].index(key.bytes)]
