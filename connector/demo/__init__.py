"""The demo: a real engine with a tiny model, its sidecar and its dashboard, started, watched and ended together."""
