"""Thin adapters from a trainer's hooks to Monitor."""

from olmes_monitor.callbacks.callback import OLMESCallback

__all__ = ["OLMESCallback"]
