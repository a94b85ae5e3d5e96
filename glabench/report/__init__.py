"""From tables to what a person reads: figures, the HTML page, Markdown and CSV."""
