"""How alike cases are in their spread, and so what those of the others say about one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import special  # not scipy.stats, which takes seconds to import

# How many degrees of freedom the cases' common variance may count for.
WEIGHTS = (0.5, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 128, 256)
COMMONS = np.geomspace(0.05, 20, 121)  # where the common variance is looked for, beside the geometric mean
# How far below the best a log likelihood may lie and still be likely: one-sided at 95 %.
LIKELY = float(special.chdtri(1, 0.10)) / 2


def likeness(variances: Sequence[float], freedoms: Sequence[int]) -> float:
    """How many degrees of freedom the common variance counts for against a case's own, by how alike the cases are.

    The true variances are taken to scatter as an inverse chi squared with that many degrees of freedom around a common
    one, so that variances over the common one follow an F distribution (Smyth 2004, doi:10.2202/1544-6115.1027). The
    answer is the low end of what these variances leave likely, out of ``WEIGHTS``: few cases do not show that they are
    alike. Variances are > 0.
    """
    commons = np.exp(np.log(variances).mean()) * COMMONS[:, None]
    ratios = np.asarray(variances) / commons
    freedom = np.asarray(freedoms, dtype=float)
    likely = [float((_log_density(ratios, freedom, w) - np.log(commons)).sum(axis=1).max()) for w in WEIGHTS]
    return next(weight for weight, found in zip(WEIGHTS, likely, strict=True) if found >= max(likely) - LIKELY)


def _log_density(x: NDArray[np.float64], m: NDArray[np.float64], n: float) -> NDArray[np.float64]:
    """log of the density of an F distribution with m and n degrees of freedom."""
    powers = m / 2 * np.log(m) + n / 2 * np.log(n) + (m / 2 - 1) * np.log(x) - (m + n) / 2 * np.log(n + m * x)
    return np.asarray(powers - special.betaln(m / 2, n / 2))
