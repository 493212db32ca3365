"""Commands that need no engine, one file each. A file is imported only when its command is called."""
