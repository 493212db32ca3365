"""The commands that run vLLM, one file each.

In: command lines. Out: reports, files and exit codes. vLLM is imported only when a command needs it.
"""
