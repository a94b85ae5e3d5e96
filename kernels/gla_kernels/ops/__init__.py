"""The public functions: what they check, the form that a call takes, and how PyTorch sees it."""
