"""``python -m glabench``."""

from glabench.cli import main

main()
