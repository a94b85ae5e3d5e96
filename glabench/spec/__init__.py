"""What to run: sweep files (YAML, validated) and the cases they expand to. Nothing here imports torch."""
