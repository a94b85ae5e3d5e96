"""From rows to answers: data frames, statistics, comparisons, work counted by hand. Nothing here imports torch."""
