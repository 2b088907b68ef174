"""Benchmarks anyone can run: `sparsegen bench`. Every time stands beside another's of the same run.

`maps` and `scaling` measure the maps beside torch.softmax, a plain copy and other libraries, `losses` the hinge losses,
`attention` the fused attention, `estimator` the classifier's fit. Wrong answers get no time.
"""

from sparsegen._table.extras import missing

try:
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise missing("sparsegen.bench", "torch", "torch") from error
