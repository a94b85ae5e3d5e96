"""What a step of decoding takes with states in a pool, and how far states drift."""
