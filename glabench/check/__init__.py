"""The regression gate: rows before and rows after a change -> a verdict for each case. No torch here."""
