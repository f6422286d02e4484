"""Saved checkpoints: found, dated in tokens, loaded into a model, scanned."""
