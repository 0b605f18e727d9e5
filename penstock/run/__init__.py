"""One run from start to end: plan, stage, commit, record."""
