"""Layers and language models in plain PyTorch, that show what the operators' times are worth in training."""
