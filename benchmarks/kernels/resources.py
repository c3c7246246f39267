"""The table of docs/internals/kernels.md: registers of a thread and resident waves or warps of Rung's kernels, by architecture.

rung kernels inspect --json | python benchmarks/kernels/resources.py
"""

import json
import sys

rows = json.load(sys.stdin)["rows"]
arches = list(dict.fromkeys(row["arch"] for row in rows))
print("| kernel | for | " + " | ".join(arches) + " | LDS, shared memory |")
print("|---|---|" + "---|" * (len(arches) + 1))
for name, about in dict.fromkeys((row["kernel"], row["source"]) for row in rows):
    same = {row["arch"]: row for row in rows if (row["kernel"], row["source"]) == (name, about)}
    cells = [f"{same[a]['registers']}, {same[a]['waves']:g}/{same[a]['most']}" if a in same else "" for a in arches]
    shared = sorted({row["shared"] for row in same.values()})
    sizes = f"{shared[0]}" if len(shared) == 1 else f"{shared[0]} – {shared[-1]}"
    print(f"| {name} | {about} | " + " | ".join(cells) + f" | {sizes} |")
spilled = [row["kernel"] for row in rows if row["spills"] or row["scratch"]]
print(f"\n{len(rows)} compiled; registers spilled: {', '.join(spilled) if spilled else 'none'}.")
