"""How one case becomes one row: inputs, gate, measure, memory, in the order that ``pipeline`` knows."""
