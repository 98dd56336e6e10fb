"""A good command line for every command."""

TRAIN = "train --data pack --out out --epochs 1 --device cpu"
EMBED = "embed --data pack --run run --out out"
NETWORK = "select network --data pack --features features --out out.parquet"
MEASURE = "scale measure --model tiny --out out.json"
PREDICT = "scale predict --profile profile.json"
PLAN = "plan --data pack"
IMPORT = "study import runs.csv --compare arm --metric accuracy --out out"
GOOD = {
    "data get": "data get digits",
    "data pack": "data pack images out",
    "data export": "data export pack out",
    "data flip": "data flip pack out",
    "data bench": "data bench pack",
    "train": TRAIN,
    "embed": EMBED,
    "view": "view sel.parquet --no-browser",
    "study run": "study run study.toml --out out",
    "study import": IMPORT,
    "scale measure": MEASURE,
    "scale predict": PREDICT,
    "scale compare": "scale compare",
    "plan": PLAN,
    "reproduce": "reproduce mccord-batch",
    "audit": "audit --data pack --features features --out out",
    "select ccs": "select ccs hard.parquet --data pack --out out.parquet",
    "select vote": "select vote sel.parquet foreign.parquet --data pack --out out.parquet",
}


RECORDED = ("select el2n", "select forgetting", "select aum", "select uncertainty")
"""Filters that need the record of a run."""


def good(words: str) -> str:
    """Return the line of a command, such as `data pack`."""
    if words in GOOD:
        return GOOD[words]
    source = "--run run" if words in RECORDED else "--features features"
    source = "" if words == "select random" else source
    return f"{words} --data pack {source} --out out.parquet"
