"""The commands that run vLLM, one file each. What needs vLLM is loaded when it is asked for."""
