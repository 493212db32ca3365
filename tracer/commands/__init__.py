"""The commands that need no engine, one file each. Each is loaded only when it is called."""
