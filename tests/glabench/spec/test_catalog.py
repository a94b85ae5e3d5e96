"""The catalog is true of the code it points to."""

from __future__ import annotations

import pytest

from glabench.spec.catalog import CATALOG, SCHEDULE
from glabench.systems.base import System, load


@pytest.mark.parametrize("name", list(CATALOG))
def test_every_entry_has_its_system(name: str) -> None:
    info = CATALOG[name]
    system = load(name)
    assert isinstance(system, System)
    assert system.name == name == info.name
    assert info.axes <= SCHEDULE
    # A system that offers the mode step has a step of its own.
    assert ("step" in info.modes) == (type(system).step is not System.step)
    assert info.triton == (type(system).launches is not System.launches)
