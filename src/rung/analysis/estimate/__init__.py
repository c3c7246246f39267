"""What a model costs, from its configuration alone: parameters, work, memory, and the time at a GPU's roof (docs/internals/estimate.md).

`block.py`, `attentions.py`, `mlps.py` and `ends.py` have the kinds of block, `architecture.py` what consists of them. `families/`
reads configurations, `step.py` and `memory.py` answer.
"""
