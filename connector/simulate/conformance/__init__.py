"""The suite that a KV connector passes."""
